"""The experiments of the BWFQ paper, and the runs that decided the order of headgate's gate."""
