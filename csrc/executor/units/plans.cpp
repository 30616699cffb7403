// See kernels/prepare/units/attention.cpp.
#include "executor/batch_runs.cpp"
#include "executor/cpu_features.cpp"
#include "executor/cpu_quota.cpp"
#include "executor/kernel_registry.cpp"
#include "executor/kernel_rows.cpp"
#include "executor/plan.cpp"
#include "executor/plan_family.cpp"
