"""loadgen: replays a tokenised dataset against a server and joins, for the *same* timed requests, latency,
energy and accuracy per variant.

    cli > commands      dataset, ceiling and results folders; `sweep_commands`: run and sweep
    sweeping            runs a plan against its servers, cell after cell
    report              a results folder -> one HTML file
    results             the results folder: schema, files, older versions, comparing, checking
    figures             pure: from records to cells, points and verdicts; the statistics
    drive               the hot path: loops, timer, worker processes, the client's own ceiling
    target              the servers: Wattserve's protocol, the Open Inference Protocol; a meter of our own
    plan                pure: what will run, in which order, with which arrivals
    option              how an option is stated: one field gives flag, plan file, check and help
    data                a dataset folder, and files of texts to make one from

It knows the protocols and nothing of the server's insides.
"""
