# %% [markdown]
# # Orders: from a topic to a table and back
#
# A notebook as a script: cells are marked by `# %%`, as editors and Jupyter (jupytext) know them.
# It needs a node and a pipeline that keeps the topic's table:
#
#     chronik start
#     chronik topics create orders --partitions 3 \
#         --config chronik.table=delta --config chronik.decode=json
#     chronik pipeline run --warehouse lake

# %%
import json
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import chronik.spark

BOOTSTRAP = os.environ.get("CHRONIK_BOOTSTRAP", "localhost:9092")
WAREHOUSE = os.environ.get("CHRONIK_WAREHOUSE", "lake")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Workers run the Python that has chronik.
spark = SparkSession.builder.master("local[2]").appName("orders").getOrCreate()

# %% [markdown]
# ## Write some orders
# Any data frame with a `value` column can be written to a topic.

# %%
orders = [
    {"id": number, "country": "de" if number % 3 else "fr", "price": number / 4}
    for number in range(1000)
]
frame = spark.createDataFrame([(json.dumps(order),) for order in orders], "value string")
frame.write.format("chronik").option("kafka.bootstrap.servers", BOOTSTRAP).option(
    "topic", "orders"
).mode("append").save()

# %% [markdown]
# ## Read the topic itself
# The same columns as Spark's `kafka` source; `decode` gives typed columns straight away.

# %%
log = (
    spark.read.format("chronik")
    .option("kafka.bootstrap.servers", BOOTSTRAP)
    .option("subscribe", "orders")
    .option("decode", "json")
    .load()
)
log.printSchema()
log.groupBy("country").agg(F.count("*").alias("orders")).show()

# %% [markdown]
# ## Read its whole history
# What the lake table has, and from the log what it has not yet: no gap, no overlap.

# %%
history = chronik.spark.table(spark, "orders", bootstrap=BOOTSTRAP, warehouse=WAREHOUSE)
history.groupBy("country").agg(F.round(F.sum("price"), 2).alias("revenue")).show()

# %% [markdown]
# ## The table is an ordinary Delta table
# Any engine reads it; the system columns say where each row came from.

# %%
from deltalake import DeltaTable  # noqa: E402

table = DeltaTable(f"{WAREHOUSE}/lake/orders")
print(table.to_pandas()[["_partition", "_offset", "id", "country", "price"]].head())

# %%
spark.stop()
