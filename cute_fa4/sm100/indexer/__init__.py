"""The lightning indexer: scores of keys, by which sparse attention chooses its keys; one product, no softmax."""
