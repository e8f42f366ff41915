"""An endless supply of small Python programming problems with executable tests.

Each problem is a composition (source x predicate x map x reduction), phrased as a docstring in
one of several ways and solved in one of many equivalent spellings. Compositions are split into
train, dev and test by a stable hash.
"""

from codila.toy.composition import split_of
from codila.toy.problem import Problem, pairs, problems, sample

__all__ = ["Problem", "pairs", "problems", "sample", "split_of"]
