"""The command `wattserve`, and inspection of a model without a server.

What libraries read as they are loaded is set here, because the command's own imports load some of them.
"""

import os

from wattserve_common.libraries import LIBRARIES

for _name, _value in LIBRARIES.items():
    os.environ.setdefault(_name, _value)
