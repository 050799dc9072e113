"""How a scenario is drawn: one module for each part of it.

Every choice is drawn on its own from a fixed list, simplest first, and assembled afterwards: a K above E is cut to E,
a rank to the number of ranks, the place of an edit to the tensor. So lowering one choice never changes what the
others mean, which is what lets a shrinker reach the true minimum, and nothing is ever filtered out.
"""

from strategies.draw.scenario import scenarios

__all__ = ["scenarios"]
