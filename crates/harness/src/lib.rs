//! Helpers shared by the scenario and the benchmarks: processes, temporary folders, figures.
