// Members of consumer groups for the Java driver: a thread for each, polling as an application.
//
// As in members.py: the commands look at what a member has seen, or are run by the member's thread
// between two polls.

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.FutureTask;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

final class Members {
    private static final int POLL_MS = 50; // How long a command waits at most for the thread.
    private static final Map<String, Member> MEMBERS = new ConcurrentHashMap<>();
    private static final Map<String, String> ASSIGNORS = Map.of(
            "range", "org.apache.kafka.clients.consumer.RangeAssignor",
            "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
            "sticky", "org.apache.kafka.clients.consumer.StickyAssignor",
            "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    private Members() {}

    static Object run(String op, JsonNode args) throws Exception {
        if (op.equals("member_open")) {
            return open(args);
        }
        Member member = MEMBERS.get(args.get("member").asText());
        TopicPartition partition =
                args.has("topic") ? Driver.partition(args) : null;
        switch (op) {
            case "member_state": return member.state();
            case "member_commit": return member.ask(() -> member.commit(args.path("offsets")));
            case "member_committed": return member.ask(() -> member.committed(partition));
            case "member_seek":
                return member.ask(() -> {
                    member.consumer.seek(partition, args.get("offset").asLong());
                    return null;
                });
            case "member_position": return member.ask(() -> member.consumer.position(partition));
            case "member_hold":
                return member.ask(() -> member.held = args.path("held").asBoolean(true));
            case "member_close":
                MEMBERS.remove(args.get("member").asText());
                return member.ask(member::close);
            default: throw new IllegalArgumentException("no command " + op);
        }
    }

    static ConsumerGroupMetadata metadata(String name) throws Exception {
        Member member = MEMBERS.get(name);
        return (ConsumerGroupMetadata) member.ask(member.consumer::groupMetadata);
    }

    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode told) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode entry : told) {
            offsets.put(
                    new TopicPartition(entry.get(0).asText(), entry.get(1).asInt()),
                    new OffsetAndMetadata(entry.get(2).asLong(), entry.path(3).asText("")));
        }
        return offsets;
    }

    private static Object open(JsonNode args) throws Exception {
        Member member = new Member(args);
        member.start();
        member.ask(() -> {
            member.open();
            return null;
        });
        MEMBERS.put(args.get("member").asText(), member);
        return null;
    }

    private static Map<String, Object> settings(JsonNode args) {
        Map<String, Object> settings = Driver.common(args);
        settings.put("group.id", args.get("group").asText());
        settings.put("enable.auto.commit", args.path("auto_commit").asBoolean(false));
        settings.put("auto.commit.interval.ms", 100);
        settings.put("auto.offset.reset", args.path("reset").asText("earliest"));
        settings.put("isolation.level", args.path("isolation").asText("read_committed"));
        settings.put("fetch.max.wait.ms", 50);
        settings.put("metadata.max.age.ms", 500);
        settings.put("max.poll.interval.ms", Driver.TIMEOUT_MS);
        if (args.hasNonNull("instance")) {
            settings.put("group.instance.id", args.get("instance").asText());
        }
        if (args.path("protocol").asText("classic").equals("consumer")) {
            settings.put("group.protocol", "consumer");
            if (args.hasNonNull("remote_assignor")) {
                settings.put("group.remote.assignor", args.get("remote_assignor").asText());
            }
            return settings;
        }
        settings.put("session.timeout.ms", args.path("session_ms").asInt(10_000));
        settings.put("heartbeat.interval.ms", 100); // A rebalance is answered at a heartbeat.
        if (args.hasNonNull("assignors")) {
            List<String> classes = new ArrayList<>();
            args.get("assignors").forEach(name -> classes.add(ASSIGNORS.get(name.asText())));
            settings.put("partition.assignment.strategy", classes);
        }
        return settings;
    }

    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final JsonNode args;
        private final BlockingQueue<FutureTask<Object>> calls = new LinkedBlockingQueue<>();
        private final List<Object> records = new ArrayList<>();
        private final List<Object> errors = new ArrayList<>();
        private List<Object> assigned = List.of();
        private int rebalances;
        private boolean done;
        boolean held;
        KafkaConsumer<byte[], byte[]> consumer;

        Member(JsonNode args) {
            this.args = args;
            setDaemon(true);
        }

        @Override
        public void run() {
            while (!done) {
                try {
                    FutureTask<Object> call =
                            held || consumer == null ? calls.take() : calls.poll();
                    if (call != null) {
                        call.run();
                    }
                } catch (InterruptedException error) {
                    return;
                }
                if (consumer != null && !held && !done) {
                    poll();
                }
            }
        }

        private void poll() {
            try {
                var batch = consumer.poll(Duration.ofMillis(POLL_MS));
                synchronized (this) {
                    for (ConsumerRecord<byte[], byte[]> record : batch) {
                        records.add(List.of(
                                record.topic(), record.partition(), record.offset(),
                                Driver.text(record.value())));
                    }
                    assigned = shown(consumer.assignment());
                }
            } catch (Exception error) {
                error.printStackTrace();
                Map<String, Object> told = new HashMap<>();
                told.put("code", Driver.code(error));
                told.put("text", error.toString());
                synchronized (this) {
                    errors.add(told);
                }
            }
        }

        Object ask(Callable<Object> call) throws Exception {
            FutureTask<Object> task = new FutureTask<>(call);
            calls.add(task);
            return task.get(Driver.TIMEOUT_MS, TimeUnit.MILLISECONDS);
        }

        void open() throws Exception {
            KafkaConsumer<byte[], byte[]> opened = new KafkaConsumer<>(
                    settings(args), new ByteArrayDeserializer(), new ByteArrayDeserializer());
            if (args.hasNonNull("assign")) {
                List<TopicPartition> wanted = new ArrayList<>();
                args.get("assign").forEach(entry -> wanted.add(
                        new TopicPartition(entry.get(0).asText(), entry.get(1).asInt())));
                opened.assign(wanted);
            } else if (args.hasNonNull("server_pattern")) {
                subscribeByServerPattern(opened, args.get("server_pattern").asText());
            } else if (args.hasNonNull("pattern")) {
                opened.subscribe(Pattern.compile(args.get("pattern").asText()), this);
            } else {
                List<String> topics = new ArrayList<>();
                args.get("topics").forEach(topic -> topics.add(topic.asText()));
                opened.subscribe(topics, this);
            }
            consumer = opened;
        }

        /** A regular expression that the broker evaluates; 3.9 has no such class to compile for. */
        private void subscribeByServerPattern(
                KafkaConsumer<byte[], byte[]> opened, String pattern) throws Exception {
            Class<?> type = Class.forName("org.apache.kafka.clients.consumer.SubscriptionPattern");
            Object wanted = type.getConstructor(String.class).newInstance(pattern);
            opened.getClass().getMethod("subscribe", type, ConsumerRebalanceListener.class)
                    .invoke(opened, wanted, this);
        }

        synchronized Object state() {
            return Map.of(
                    "assigned", assigned, "records", new ArrayList<>(records),
                    "errors", new ArrayList<>(errors), "rebalances", rebalances);
        }

        Object commit(JsonNode wanted) {
            if (wanted.isArray()) {
                consumer.commitSync(offsets(wanted));
            } else {
                consumer.commitSync();
            }
            return null;
        }

        Object committed(TopicPartition partition) {
            OffsetAndMetadata told = consumer.committed(Set.of(partition)).get(partition);
            return told == null ? null : List.of(told.offset(), told.metadata());
        }

        Object close() {
            done = true;
            consumer.close();
            return null;
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

        @Override
        public synchronized void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            rebalances++;
        }
    }

    static List<Object> shown(Collection<TopicPartition> partitions) {
        return partitions.stream()
                .sorted((a, b) -> a.topic().equals(b.topic())
                        ? Integer.compare(a.partition(), b.partition())
                        : a.topic().compareTo(b.topic()))
                .map(at -> (Object) List.of(at.topic(), at.partition()))
                .toList();
    }
}
