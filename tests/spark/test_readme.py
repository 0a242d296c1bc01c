"""The README's section on Spark, followed from its first line to its last by a new user."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from chronik.testing import Broker

README = Path(__file__).parents[2] / "README.md"
TITLE = "## Topics as Spark tables\n"
BLOCK_SECONDS_MAX = 300  # three Sparks after each other, on a busy machine
TOLD = (
    ("created orders: partitions 3", "wrote 3 records to orders"),
    ("|     de|    1|", "|     fr|    1|", "|   NULL|    1|"),
    (
        "orders: 2 rows, 1 dead letters",
        "LAST COMMIT",
        "\nfr              1\n",
        "replayed 0 dead letters of orders, 1 left",
        "no finding",
    ),
)


def blocks() -> list[tuple[str, str]]:
    section = README.read_text().split(TITLE)[1].split("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", section, re.M | re.S)


def test_the_section_can_be_followed(tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    (tmp_path / ".venv").symlink_to(folder.parent)
    with Broker() as broker:
        variables = {
            **os.environ,
            "CHRONIK_BOOTSTRAP": broker.bootstrap,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHONWARNINGS": "ignore",
        }
        variables.pop("PYSPARK_PYTHON", None)
        for (language, text), told in zip(blocks(), TOLD, strict=True):
            text = text.replace("localhost:9092", broker.bootstrap)
            shell = ["bash", "-euo", "pipefail", "-c"]
            done = subprocess.run(
                [*({"sh": shell, "python": ["python", "-c"]}[language]), text],
                cwd=tmp_path,
                env=variables,
                capture_output=True,
                text=True,
                timeout=BLOCK_SECONDS_MAX,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            for words in told:
                assert words in done.stdout, done.stdout + done.stderr
