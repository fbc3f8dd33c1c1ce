"""loadgen: replays a tokenised dataset against a Wattserve server and joins, for the *same* timed requests,
latency, energy and accuracy per variant.

    cli ─┬─> prepare ──> tables, dataset                   a file of texts -> a dataset folder
         ├─> sweep ─┬──> preflight, environment            what is checked and noted before
         │          ├──> target, worker, answers           talks to the server
         │          ├──> schedule, stats, account,         pure: the plan, and what was found
         │          │    measure, points
         │          └──> result, schema, codec, progress   the results folder, and the screen
         └─> report ───> report_text, report_tables,       a results folder -> one HTML file
                         pictures, *_charts, marks, ink

It knows the protocol and nothing of the server's insides.
"""
