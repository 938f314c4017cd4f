"""``everstep sim report``: what simulations came to, as one page that needs nothing else."""
