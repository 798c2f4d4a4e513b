"""The gate's vocabulary: requests, tenants, invocations, workers, outcomes and errors. Pure, standard library only."""
