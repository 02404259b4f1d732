"""Which version this is; the package's metadata is made from it.

Asking the installed metadata instead would load a good part of the standard library, to find one word.
"""

from typing import Final

DISTRIBUTION: Final = "kube-informers"
VERSION: Final = "0.1.0"
