"""Groups, offsets and transactions: pure machines, and the runtime that drives them."""
