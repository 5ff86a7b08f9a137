"""`python -m bench`: what Weftline costs on this machine, each measure beside the floor measured in the same run."""
