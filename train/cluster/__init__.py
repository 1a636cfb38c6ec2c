"""A whole cluster on one machine: a Lighthouse and replica groups as child processes, and their deaths."""
