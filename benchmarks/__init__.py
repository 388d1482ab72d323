"""Speed, memory and accuracy beside peers: ``python -m benchmarks`` lists the scenarios."""
