"""`python -m deploy.grafana.making` writes deploy/grafana/dashboards/*.json; a test compares."""
