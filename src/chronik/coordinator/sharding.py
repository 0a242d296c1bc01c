"""Which partition of a coordinator's topic has a key: Kafka's rule, so that tools find it too."""


def partition_of(key: str, partition_count: int) -> int:
    """The partition of a group id or transactional id."""
    code = _java_hash(key)
    return (abs(code) if code != -(2**31) else 0) % partition_count


def _java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, in 32 bits with a sign."""
    code = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(data), 2):
        code = (31 * code + (data[i] << 8 | data[i + 1])) & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code
