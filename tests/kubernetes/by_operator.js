// Run in the folder node that get_schemas.sh made: PodMonitors, a JSON list on stdin, held against the schema of
// Prometheus' operator; a JSON list with the mistakes of each on stdout.
import { readFileSync } from "node:fs";
import { PodMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor";

function mistakes(made) {
  try {
    new PodMonitor(made).validate();
    return [];
  } catch (error) {
    return [error.message];
  }
}

console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(mistakes)));
