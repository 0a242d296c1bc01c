"""The groups of a shard, whatever they speak, and their offsets."""
