"""The request that is sent to a model, made from the one that the log describes."""
