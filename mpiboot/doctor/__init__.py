"""``mpiboot doctor``: observe a pod or all hosts, judge by checks, report."""
