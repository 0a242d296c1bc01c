"""One small file per API family: translate a request, call one thing below, translate back."""
