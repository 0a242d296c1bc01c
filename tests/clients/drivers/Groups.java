// Group administration and transactions for the Java driver; the answers are those of the Python
// drivers.

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

final class Groups {
    private static final Map<String, KafkaProducer<byte[], byte[]>> PRODUCERS = new HashMap<>();

    private Groups() {}

    static Object run(String op, JsonNode args) throws Exception {
        switch (op) {
            case "list_groups": return list(args);
            case "describe_group": return describe(args);
            case "group_offsets": return groupOffsets(args);
            case "alter_group_offsets":
                return Driver.admin(args).alterConsumerGroupOffsets(
                        group(args), Members.offsets(args.get("offsets"))).all().get();
            case "delete_group_offsets":
                return Driver.admin(args).deleteConsumerGroupOffsets(
                        group(args), Set.of(Driver.partition(args))).all().get();
            case "delete_group":
                return Driver.admin(args).deleteConsumerGroups(List.of(group(args))).all().get();
            default: return op.startsWith("txn_") ? transaction(op, args) : Members.run(op, args);
        }
    }

    private static String group(JsonNode args) {
        return args.get("group").asText();
    }

    private static Object list(JsonNode args) throws Exception {
        Set<String> groups = new TreeSet<>();
        Driver.admin(args).listConsumerGroups().all().get().forEach(g -> groups.add(g.groupId()));
        return groups;
    }

    private static Object describe(JsonNode args) throws Exception {
        var told = Driver.admin(args).describeConsumerGroups(List.of(group(args)))
                .describedGroups().get(group(args)).get();
        List<Object> members = new ArrayList<>();
        for (MemberDescription member : told.members()) {
            Map<String, Object> shown = new HashMap<>();
            shown.put("instance", member.groupInstanceId().orElse(null));
            shown.put("assigned", Members.shown(member.assignment().topicPartitions()));
            members.add(shown);
        }
        return Map.of(
                "state", told.state().toString(), "assignor", told.partitionAssignor(),
                "type", told.type().toString(), "members", members);
    }

    private static Object groupOffsets(JsonNode args) throws Exception {
        var told = Driver.admin(args).listConsumerGroupOffsets(group(args))
                .partitionsToOffsetAndMetadata().get();
        List<Object> offsets = new ArrayList<>();
        for (Object at : Members.shown(told.keySet())) {
            List<?> pair = (List<?>) at;
            told.forEach((partition, value) -> {
                if (partition.topic().equals(pair.get(0))
                        && pair.get(1).equals(partition.partition())) {
                    offsets.add(List.of(
                            pair.get(0), pair.get(1), value.offset(), value.metadata()));
                }
            });
        }
        return offsets;
    }

    private static Object transaction(String op, JsonNode args) throws Exception {
        String name = args.get("producer").asText();
        if (op.equals("txn_open")) {
            return open(name, args);
        }
        KafkaProducer<byte[], byte[]> producer = PRODUCERS.get(name);
        switch (op) {
            case "txn_begin": producer.beginTransaction(); return null;
            case "txn_produce": return produce(producer, args);
            case "txn_offsets":
                producer.sendOffsetsToTransaction(
                        Members.offsets(args.get("offsets")), metadata(args));
                return null;
            case "txn_commit": producer.commitTransaction(); return null;
            case "txn_abort": producer.abortTransaction(); return null;
            case "txn_close": PRODUCERS.remove(name).close(java.time.Duration.ZERO); return null;
            default: throw new IllegalArgumentException("no command " + op);
        }
    }

    /** The member's own metadata, or what a member of an older generation would send. */
    private static ConsumerGroupMetadata metadata(JsonNode args) throws Exception {
        ConsumerGroupMetadata current = Members.metadata(args.get("member").asText());
        int generation = current.generationId() - args.path("generations_ago").asInt(0);
        return new ConsumerGroupMetadata(
                current.groupId(), generation, current.memberId(), current.groupInstanceId());
    }

    private static Object open(String name, JsonNode args) {
        Map<String, Object> settings = Driver.common(args);
        settings.remove("default.api.timeout.ms");
        settings.put("transactional.id", args.get("transactional_id").asText());
        settings.put("transaction.timeout.ms", args.path("timeout_ms").asInt(60_000));
        settings.put("compression.type", args.path("codec").asText("none"));
        settings.put("linger.ms", 2);
        settings.put("max.block.ms", Driver.TIMEOUT_MS);
        settings.put("delivery.timeout.ms", Driver.TIMEOUT_MS + 2);
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                settings, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        PRODUCERS.put(name, producer);
        return null;
    }

    private static Object produce(KafkaProducer<byte[], byte[]> producer, JsonNode args)
            throws Exception {
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        for (JsonNode sent : args.get("records")) {
            futures.add(producer.send(new ProducerRecord<>(
                    Driver.topic(args), Driver.partition(args).partition(),
                    Driver.bytes(sent.get("key")), Driver.bytes(sent.get("value")))));
        }
        producer.flush();
        for (Future<RecordMetadata> future : futures) {
            future.get(Driver.TIMEOUT_MS, TimeUnit.MILLISECONDS);
        }
        return null;
    }
}
