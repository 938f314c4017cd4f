"""Parts of the recovery benchmark: hosts with networks of their own, one training script, everstep and torchrun."""
