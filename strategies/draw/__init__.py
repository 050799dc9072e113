"""How a scenario is drawn: one module for each part of it.

Every choice is drawn on its own from a fixed list, simplest first, and assembled afterwards: E is raised to hold K and
the ranks to hold this one, the place of an edit is cut to the tensor. So lowering one choice never changes what the
others mean, which is what lets a shrinker reach the true minimum, and nothing is ever filtered out.
"""

from strategies.draw.router import router_scenarios
from strategies.draw.scenario import scenarios

__all__ = ["router_scenarios", "scenarios"]
