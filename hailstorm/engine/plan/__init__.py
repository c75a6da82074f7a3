"""From a topology to a plan: flows, the compiler, and one file per kind of stateful step."""
