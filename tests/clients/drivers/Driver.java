// The Java client behind the commands of the matrix; compiled against 3.9 and against 4.x.
//
// Commands and answers are those of driver.py: a JSON line in, a JSON line out, bytes as base64,
// errors as Kafka's numbers. One producer for each combination of settings and one admin client
// for each broker live as long as the process. Members.java and Groups.java have the rest.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class Driver {
    static final int TIMEOUT_MS = 20_000;
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, KafkaProducer<byte[], byte[]>> PRODUCERS = new HashMap<>();
    private static final Map<String, Admin> ADMINS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = JSON.readTree(line);
            Map<String, Object> answer = new HashMap<>();
            try {
                answer.put("ok", run(command.get("op").asText(), command.get("args")));
            } catch (Exception error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                cause.printStackTrace();
                answer.put("error", code(cause));
                answer.put("text", cause.toString());
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        System.exit(0);
    }

    /** Kafka's number; the client's own errors have none. */
    static Integer code(Throwable cause) {
        if (cause instanceof OffsetOutOfRangeException) {
            return (int) Errors.OFFSET_OUT_OF_RANGE.code();
        }
        return cause instanceof ApiException ? (int) Errors.forException(cause).code() : null;
    }

    private static Object run(String op, JsonNode args) throws Exception {
        switch (op) {
            case "produce": return produce(args);
            case "consume": return consume(args);
            case "follow": return follow(args);
            case "offset": return offset(args);
            case "brokers": return brokers(args);
            case "topics":
                return new TreeSet<>(admin(args).listTopics().names().get());
            case "cluster": return cluster(args);
            case "create_topic": return createTopic(args);
            case "delete_topic":
                return admin(args).deleteTopics(List.of(topic(args))).all().get();
            case "describe_topic": return describeTopic(args);
            case "create_partitions":
                return admin(args).createPartitions(Map.of(
                        topic(args), NewPartitions.increaseTo(args.get("total").asInt())))
                        .all().get();
            case "configs": return configs(args);
            case "set_configs": return setConfigs(args);
            case "delete_records": return deleteRecords(args);
            default: return Groups.run(op, args);
        }
    }

    private static String bootstrap(JsonNode args) {
        return args.get("bootstrap").asText();
    }

    static String topic(JsonNode args) {
        return args.get("topic").asText();
    }

    static TopicPartition partition(JsonNode args) {
        return new TopicPartition(topic(args), args.path("partition").asInt(0));
    }

    static byte[] bytes(JsonNode text) {
        boolean none = text == null || text.isNull() || text.isMissingNode();
        return none ? null : Base64.getDecoder().decode(text.asText());
    }

    static String text(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }

    static Map<String, Object> common(JsonNode args) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap(args));
        settings.put("reconnect.backoff.ms", 10);
        settings.put("retry.backoff.ms", 20);
        settings.put("request.timeout.ms", TIMEOUT_MS);
        settings.put("default.api.timeout.ms", TIMEOUT_MS);
        return settings;
    }

    static Admin admin(JsonNode args) {
        return ADMINS.computeIfAbsent(bootstrap(args), address -> Admin.create(common(args)));
    }

    private static KafkaProducer<byte[], byte[]> producer(JsonNode args) {
        Map<String, Object> settings = common(args);
        settings.remove("default.api.timeout.ms");
        int timeoutMs = args.path("timeout_ms").asInt(TIMEOUT_MS);
        settings.put("compression.type", args.path("codec").asText("none"));
        settings.put("acks", args.path("acks").asText("all"));
        settings.put("enable.idempotence", args.path("idempotent").asBoolean(false));
        settings.put("linger.ms", 2);
        settings.put("batch.size", 200_000);
        settings.put("max.request.size", 10_000_000);
        settings.put("max.block.ms", timeoutMs);
        settings.put("request.timeout.ms", timeoutMs);
        settings.put("delivery.timeout.ms", timeoutMs + 2);
        return PRODUCERS.computeIfAbsent(
                new java.util.TreeMap<>(settings).toString(),
                key -> new KafkaProducer<>(
                        settings, new ByteArraySerializer(), new ByteArraySerializer()));
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonNode args) {
        Map<String, Object> settings = common(args);
        String reset = args.path("reset").asText("error");
        settings.put("enable.auto.commit", false);
        settings.put("isolation.level", args.path("isolation").asText("read_committed"));
        settings.put("allow.auto.create.topics", false);
        settings.put("auto.offset.reset", reset.equals("error") ? "none" : reset);
        settings.put("fetch.max.wait.ms", 100);
        settings.put("max.poll.records", 10_000);
        return new KafkaConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static Object produce(JsonNode args) throws Exception {
        KafkaProducer<byte[], byte[]> producer = producer(args);
        TopicPartition target = partition(args);
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        for (JsonNode sent : args.get("records")) {
            Long timestamp = sent.hasNonNull("timestamp") ? sent.get("timestamp").asLong() : null;
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    target.topic(), target.partition(), timestamp,
                    bytes(sent.get("key")), bytes(sent.get("value")));
            for (JsonNode header : sent.path("headers")) {
                record.headers().add(header.get(0).asText(), bytes(header.get(1)));
            }
            futures.add(producer.send(record));
        }
        producer.flush();
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> future : futures) {
            offsets.add(future.get(TIMEOUT_MS, TimeUnit.MILLISECONDS).offset());
        }
        return offsets;
    }

    private static void seek(
            KafkaConsumer<byte[], byte[]> consumer, TopicPartition target, JsonNode start) {
        List<TopicPartition> targets = List.of(target);
        if (start.isObject()) {
            long timestamp = start.get("timestamp").asLong();
            consumer.seek(
                    target, consumer.offsetsForTimes(Map.of(target, timestamp)).get(target).offset());
        } else if (start.isNumber()) {
            consumer.seek(target, start.asLong());
        } else if (start.asText().equals("earliest")) {
            consumer.seekToBeginning(targets);
        } else {
            consumer.seekToEnd(targets);
        }
    }

    private static Object consume(JsonNode args) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(args)) {
            consumer.assign(List.of(partition(args)));
            seek(consumer, partition(args), args.get("start"));
            return poll(consumer, args.get("count").asInt());
        }
    }

    private static Object follow(JsonNode args) throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(args)) {
            consumer.assign(List.of(partition(args)));
            consumer.seekToEnd(List.of(partition(args)));
            consumer.position(partition(args)); // Resolves the end before anything is written.
            produce(args);
            return poll(consumer, args.get("records").size());
        }
    }

    private static List<Object> poll(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<Object> records = new ArrayList<>();
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(TIMEOUT_MS);
        while (records.size() < count && System.nanoTime() < until) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                records.add(shown(record));
            }
        }
        if (records.size() < count) {
            throw new IllegalStateException(records.size() + " of " + count + " records in time");
        }
        return records.subList(0, count);
    }

    private static Map<String, Object> shown(ConsumerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            List<Object> pair = new ArrayList<>(); // List.of refuses the null of an empty header.
            pair.add(header.key());
            pair.add(text(header.value()));
            headers.add(pair);
        }
        Map<String, Object> shown = new HashMap<>();
        shown.put("offset", record.offset());
        shown.put("timestamp", record.timestamp());
        shown.put("key", text(record.key()));
        shown.put("value", text(record.value()));
        shown.put("headers", headers);
        return shown;
    }

    private static Object offset(JsonNode args) throws Exception {
        JsonNode at = args.get("at");
        OffsetSpec spec = at.isNumber() ? OffsetSpec.forTimestamp(at.asLong())
                : at.asText().equals("earliest") ? OffsetSpec.earliest() : OffsetSpec.latest();
        return admin(args).listOffsets(Map.of(partition(args), spec))
                .partitionResult(partition(args)).get().offset();
    }

    private static Object brokers(JsonNode args) throws Exception {
        List<Object> brokers = new ArrayList<>();
        for (Node node : admin(args).describeCluster().nodes().get()) {
            brokers.add(List.of(node.id(), node.host(), node.port()));
        }
        return brokers;
    }

    private static Object cluster(JsonNode args) throws Exception {
        var told = admin(args).describeCluster();
        return Map.of(
                "cluster_id", told.clusterId().get(),
                "controller", told.controller().get().id(),
                "brokers", ids(told.nodes().get()));
    }

    private static List<Integer> ids(Collection<Node> nodes) {
        return nodes.stream().map(Node::id).toList();
    }

    private static Object createTopic(JsonNode args) throws Exception {
        NewTopic wanted = new NewTopic(
                topic(args), args.path("partitions").asInt(1),
                (short) args.path("replication_factor").asInt(1));
        wanted.configs(strings(args.path("configs")));
        CreateTopicsOptions options = new CreateTopicsOptions()
                .validateOnly(args.path("validate_only").asBoolean(false));
        return admin(args).createTopics(List.of(wanted), options).all().get();
    }

    private static Map<String, String> strings(JsonNode object) {
        Map<String, String> values = new LinkedHashMap<>();
        object.fields().forEachRemaining(e -> values.put(e.getKey(), e.getValue().asText()));
        return values;
    }

    private static Object describeTopic(JsonNode args) throws Exception {
        var told = admin(args).describeTopics(List.of(topic(args))).allTopicNames().get();
        List<Object> partitions = new ArrayList<>();
        for (var partition : told.get(topic(args)).partitions()) {
            partitions.add(Map.of(
                    "partition", partition.partition(),
                    "leader", partition.leader().id(),
                    "replicas", ids(partition.replicas()),
                    "isr", ids(partition.isr())));
        }
        return partitions;
    }

    private static ConfigResource resource(JsonNode args) {
        String kind = args.get("kind").asText().toUpperCase(java.util.Locale.ROOT);
        return new ConfigResource(ConfigResource.Type.valueOf(kind), args.get("name").asText());
    }

    private static Object configs(JsonNode args) throws Exception {
        var told = admin(args).describeConfigs(List.of(resource(args))).all().get();
        Map<String, String> values = new HashMap<>();
        for (ConfigEntry entry : told.get(resource(args)).entries()) {
            values.put(entry.name(), entry.value());
        }
        return values;
    }

    private static Object setConfigs(JsonNode args) throws Exception {
        List<AlterConfigOp> operations = new ArrayList<>();
        strings(args.get("values")).forEach((name, value) -> operations.add(
                new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        Map<ConfigResource, Collection<AlterConfigOp>> asked = Map.of(resource(args), operations);
        return admin(args).incrementalAlterConfigs(asked).all().get();
    }

    private static Object deleteRecords(JsonNode args) throws Exception {
        TopicPartition target = partition(args);
        RecordsToDelete before = RecordsToDelete.beforeOffset(args.get("before").asLong());
        return admin(args).deleteRecords(Map.of(target, before))
                .lowWatermarks().get(target).get().lowWatermark();
    }
}
