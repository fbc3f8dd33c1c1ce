"""`python -m wattserve_loadgen`."""

from wattserve_loadgen.cli import main

raise SystemExit(main())
