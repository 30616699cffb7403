#include "executor/batch_runs.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "executor/arena.hpp"
#include "executor/cpu_features.hpp"
#include "executor/plan.hpp"

namespace engine {
namespace {

// Where the system reports no caches, as on AArch64.
constexpr std::size_t kDefaultL2 = std::size_t{1} << 20, kDefaultL3 = std::size_t{2} << 20;
// Virtual machines share a larger L3 cache with others, or report that of several sockets.
constexpr std::size_t kMostL3 = std::size_t{8} << 20;
// The cost of a byte of a map that comes from the L3 cache, relative to one from memory.
constexpr double kL3Cost = 0.25;
// Weights are read in order, in advance of the products. A weight that an image uses this often costs as much as a
// byte of a map; one that is used more often, less.
constexpr double kWeightUses = 8;
// A run must save this share of what its steps cost without it, and as many bytes from memory as an L2 cache has.
constexpr double kLeastShare = 0.1;
constexpr int kMostSteps = 256;
// Workers that have no whole number of slices wait for each other.
constexpr std::int64_t kManySlices = 8;
constexpr std::int64_t kMostImages = 4;

// One choice of the number of images in a slice.
class Chooser {
 public:
  Chooser(const std::vector<RunStep>& steps, const std::vector<RunRoot>& roots, std::int64_t batch,
          const BatchMachine& machine)
      : steps_(steps),
        roots_(roots),
        batch_(batch),
        machine_(machine),
        first_(roots.size(), -1),
        last_(roots.size(), -1),
        uses_(roots.size()) {
    for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
      for (const RunOperand& operand : step(i).operands) {
        if (first_[at(operand.root)] < 0) first_[at(operand.root)] = i;
        last_[at(operand.root)] = i;
      }
      together_.push_back(step(i).is_divisible ? cost_together(step(i)) : 0);
    }
  }

  std::vector<BatchRun> choose() {
    const int count = static_cast<int>(steps_.size());
    struct Best {
      double cost = 0;
      int end = -1;  // of a run that begins here; -1: there is none
      std::int64_t images = 0;
    };
    std::vector<Best> best(at(count) + 1);  // of the steps from each on
    for (int begin = count; begin-- > 0;) {
      best[at(begin)].cost = together_[at(begin)] + best[at(begin) + 1].cost;
      for (std::int64_t images = 1; images <= kMostImages && images < batch_; images *= 2) {
        if (!is_balanced(images)) continue;
        extend(begin, images, [&](int end, double cost) {
          const double total = cost + best[at(end)].cost;
          if (total < best[at(begin)].cost) best[at(begin)] = {total, end, images};
        });
      }
    }
    std::vector<BatchRun> runs;
    for (int i = 0; i < count;) {
      const Best& chosen = best[at(i)];
      if (chosen.end > 0) runs.push_back({i, chosen.end, chosen.images});
      i = chosen.end > 0 ? chosen.end : i + 1;
    }
    return runs;
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  const RunStep& step(int index) const { return steps_[at(index)]; }

  bool is_balanced(std::int64_t images) const {
    if (batch_ % images != 0) return false;
    const std::int64_t slices = batch_ / images;
    return slices % machine_.workers == 0 || slices >= kManySlices * machine_.workers;
  }

  // Of a byte of a map, if a step reads and writes so many bytes on each core.
  double level(double bytes) const {
    if (bytes <= static_cast<double>(machine_.l2_bytes)) return 0;
    return bytes <= static_cast<double>(machine_.l3_bytes) / 2 ? kL3Cost : 1;
  }

  // The bytes of an image's maps, and of weights.
  static double map_bytes(const RunStep& step) {
    double bytes = 0;
    for (const RunOperand& operand : step.operands)
      if (operand.image.step != 0) bytes += static_cast<double>(operand.image.bytes);
    return bytes;
  }
  static double weight_bytes(const RunStep& step) {
    double bytes = 0;
    for (const RunOperand& operand : step.operands)
      if (operand.image.step == 0) bytes += static_cast<double>(operand.image.bytes);
    return bytes;
  }

  double level_together(const RunStep& step) const {
    return level(map_bytes(step) * static_cast<double>(batch_) / machine_.workers);
  }

  // Of reading the weights once, for products with so many images.
  double weight_cost(const RunStep& step, double images) const {
    const double bytes = weight_bytes(step);
    if (bytes == 0 || step.work == 0) return 0;
    const double uses = step.work / static_cast<double>(batch_) * images / (bytes / 2);
    return bytes * std::min(1.0, kWeightUses / uses);
  }

  double cost_together(const RunStep& step) const {
    return map_bytes(step) * static_cast<double>(batch_) * level_together(step) +
           weight_cost(step, static_cast<double>(batch_));
  }

  // How the steps of a run use a buffer.
  struct Use {
    int run = -1;
    std::size_t step = 0;  // from an image to the next
    bool is_written = false;
    bool is_divided = true;  // all its operands belong to one image, at the same place of it
    double gain = 0;         // if no other step uses it

    bool add(const RunOperand& operand, std::size_t bytes, std::int64_t batch) {
      if (step == 0) step = operand.image.step;
      const bool fits = operand.image.step != 0 && operand.image.step == step &&
                        operand.offset + operand.image.bytes <= step && step * static_cast<std::size_t>(batch) == bytes;
      is_divided = is_divided && fits;
      is_written = is_written || operand.is_written;
      return is_divided || !is_written;
    }
  };

  // Calls `found` with the end and the cost of each run that begins with a step and is worth it.
  template <class Found>
  void extend(int begin, std::int64_t images, Found found) {
    const int run = runs_++;
    double maps = 0, weights = 0, weights_read = 0, together = 0;
    const double slices = static_cast<double>(batch_ / images);
    const int end = std::min(static_cast<int>(steps_.size()), begin + kMostSteps);
    for (int i = begin; i < end && step(i).is_divisible; ++i) {
      const RunStep& added = step(i);
      const double outside = level_together(added);
      const double inside = level(map_bytes(added) * static_cast<double>(images));
      for (const RunOperand& operand : added.operands) {
        Use& use = uses_[at(operand.root)];
        if (use.run != run) use = Use{run};
        if (!use.add(operand, roots_[at(operand.root)].bytes, batch_)) return;
        if (operand.image.step == 0) continue;
        const double bytes = static_cast<double>(operand.image.bytes) * static_cast<double>(batch_);
        maps += bytes * outside;
        use.gain += bytes * (outside - inside);
      }
      for (const RunOperand& operand : added.operands) {
        if (last_[at(operand.root)] != i || first_[at(operand.root)] < begin || !roots_[at(operand.root)].is_arena)
          continue;
        maps -= uses_[at(operand.root)].gain;
        uses_[at(operand.root)].gain = 0;
      }
      weights += weight_bytes(added);
      weights_read += weight_cost(added, static_cast<double>(images)) * slices;
      together += together_[at(i)];
      const double cost = maps + (weights > static_cast<double>(machine_.l2_bytes) / 2 ? weights_read : 0);
      if (together - cost >= std::max(static_cast<double>(machine_.l2_bytes), kLeastShare * together))
        found(i + 1, cost);
    }
  }

  const std::vector<RunStep>& steps_;
  const std::vector<RunRoot>& roots_;
  const std::int64_t batch_;
  const BatchMachine machine_;
  std::vector<int> first_, last_;  // steps that use each root
  std::vector<double> together_;   // the cost of each step
  std::vector<Use> uses_;          // of each root
  int runs_ = 0;
};

}  // namespace

BatchMachine batch_machine(int workers) {
  const CpuFeatures& cpu = cpu_features();
  const int cores = std::max(1, cpu.usable_cores);
  const std::size_t l2 = cpu.l2_bytes != 0 ? cpu.l2_bytes : kDefaultL2;
  const std::size_t l3 = cpu.l3_bytes != 0 ? cpu.l3_bytes / static_cast<std::size_t>(cores) : kDefaultL3;
  return {workers > 0 ? workers : cores, l2, std::max(l2, std::min(l3, kMostL3))};
}

std::vector<BatchRun> choose_batch_runs(const std::vector<RunStep>& steps, const std::vector<RunRoot>& roots,
                                        std::int64_t batch, const BatchMachine& machine) {
  return Chooser(steps, roots, batch, machine).choose();
}

// Divides the steps that gain by it into slices of the batch.
void PlanBuilder::divide_batches() {
  std::map<std::int64_t, int> batches;
  for (const PendingStep& step : steps_) {
    const std::int64_t images = images_of(step.info.kernel, step.attributes);
    if (images > 1) ++batches[images];
  }
  if (batches.empty()) return;
  const std::int64_t batch = std::max_element(batches.begin(), batches.end(), [](const auto& a, const auto& b) {
                               return a.second < b.second;
                             })->first;
  std::vector<RunStep> steps;
  for (PendingStep& step : steps_) {
    const auto image = image_step(step.info.kernel, step.attributes, sizes(step.inputs), sizes(step.outputs), batch, 1);
    RunStep& added = steps.emplace_back();
    added.is_divisible = image.has_value();
    for (std::int64_t images = 1; images <= kMostImages && added.is_divisible; images *= 2)
      added.is_divisible = batch % images != 0 || has_same_phases(step, batch, images, image->in_one_phase);
    added.work = step.info.work;
    const auto add = [&](const std::vector<BufferId>& ids, bool is_written) {
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const Buffer& used = buffer(ids[i]);
        OperandImage part{used.bytes};
        if (added.is_divisible) part = (is_written ? image->outputs : image->inputs)[i];
        added.operands.push_back({used.root, used.offset, part, is_written});
      }
    };
    add(step.inputs, false);
    add(step.outputs, true);
  }
  std::vector<RunRoot> roots;
  for (const Buffer& each : buffers_) roots.push_back({each.bytes, each.kind == BufferKind::arena});
  for (const BatchRun& run : choose_batch_runs(steps, roots, batch, machine_))
    divide_steps(run.begin, run.end, batch, run.images);
  find_private();
}

// Prepares a step for a slice; its operands become those of the slice.
PreparedStep PlanBuilder::prepare_slice(PendingStep& step, std::int64_t batch, std::int64_t images) const {
  const auto slice =
      image_step(step.info.kernel, step.attributes, sizes(step.inputs), sizes(step.outputs), batch, images);
  std::vector<std::size_t> input_bytes, output_bytes;
  step.slices.clear();
  const auto divide = [&](const std::vector<OperandImage>& operands, std::vector<std::size_t>& bytes) {
    for (const OperandImage& operand : operands) {
      const auto count = static_cast<std::size_t>(images);
      bytes.push_back(operand.step == 0 ? operand.bytes : (count - 1) * operand.step + operand.bytes);
      step.slices.push_back({bytes.back(), count * operand.step});
    }
  };
  divide(slice->inputs, input_bytes);
  divide(slice->outputs, output_bytes);
  return registry_->operation(step.info.kernel)
      .prepare(StepRequest{input_bytes, output_bytes, slice->attributes, LimitedLookup(*registry_, isa_)});
}

// Whether a step of a slice has as many phases as the batch's.
bool PlanBuilder::has_same_phases(PendingStep& step, std::int64_t batch, std::int64_t images, bool has_one) const {
  const PreparedStep prepared = prepare_slice(step, batch, images);
  return static_cast<int>(prepared.phases.size()) == step.info.phases && (step.info.phases == 1 || !has_one) &&
         step.slices.size() + prepared.temporaries.size() <= kMaxSliceOperands;
}

// The buffers that only the steps of one run use.
void PlanBuilder::find_private() {
  constexpr int kUnused = -2, kShared = -1;
  std::vector<int> run_of(buffers_.size(), kUnused);
  for (const PendingStep& step : steps_) {
    for (const auto* ids : {&step.inputs, &step.outputs, &step.temporaries}) {
      for (const BufferId id : *ids) {
        int& run = run_of[static_cast<std::size_t>(buffer(id).root)];
        run = run == kUnused || run == step.run ? step.run : kShared;
      }
    }
  }
  is_private_.assign(buffers_.size(), false);
  for (std::size_t id = 0; id < buffers_.size(); ++id)
    is_private_[id] = buffers_[id].kind == BufferKind::arena && run_of[id] >= 0;
}

// Prepares steps again, each for one slice.
void PlanBuilder::divide_steps(int begin, int end, std::int64_t batch, std::int64_t images) {
  const int run = static_cast<int>(runs_.size());
  const int slices = static_cast<int>(batch / images);
  std::vector<PendingPhase> made;
  for (int i = begin; i < end; ++i) {
    PendingStep& step = steps_[static_cast<std::size_t>(i)];
    PreparedStep prepared = prepare_slice(step, batch, images);
    step.run = run;
    step.temporaries.clear();
    for (const std::size_t bytes : prepared.temporaries) step.temporaries.push_back(add_buffer(bytes));
    for (PreparedPhase& phase : prepared.phases) {
      phase.run = registry_->portable(phase.run, default_isa());
      phase.max_workers = slices;
      made.push_back({std::move(phase), i});
    }
  }
  const auto of_run = [&](const PendingPhase& phase) { return phase.step >= begin && phase.step < end; };
  const auto first = std::find_if(phases_.begin(), phases_.end(), of_run);
  const auto last = std::find_if_not(first, phases_.end(), of_run);
  const auto place = phases_.erase(first, last);
  phases_.insert(place, std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()));
  runs_.push_back({slices});
}

// Places the buffers that only the steps of one run use in the memory of a worker.
void PlanBuilder::lay_out_runs() {
  is_private_.resize(buffers_.size(), false);
  for (int run = 0; run < static_cast<int>(runs_.size()); ++run) {
    std::vector<Lifetime> lifetimes;
    std::map<std::size_t, std::size_t> places;
    std::size_t scratch = 0;
    int time = 0;
    for (const PendingPhase& phase : phases_) {
      const PendingStep& step = steps_[static_cast<std::size_t>(phase.step)];
      if (step.run != run) continue;
      scratch = std::max(scratch, phase.prepared.scratch_bytes);
      for (const auto* ids : {&step.inputs, &step.outputs, &step.temporaries}) {
        for (const BufferId id : *ids) {
          const auto root = static_cast<std::size_t>(buffer(id).root);
          if (!is_private(root)) continue;
          const auto [place, is_new] = places.emplace(root, lifetimes.size());
          const bool is_whole = ids == &step.temporaries;  // prepared for a slice
          const std::size_t slices =
              is_whole ? 1 : static_cast<std::size_t>(runs_[static_cast<std::size_t>(run)].slices);
          if (is_new) lifetimes.push_back({buffers_[root].bytes / slices, 64, time, time});
          lifetimes[place->second].last = time;
        }
      }
      ++time;
    }
    const ArenaLayout layout = lay_out_arena(lifetimes);
    Run& placed = runs_[static_cast<std::size_t>(run)];
    placed.private_at = checked_add(scratch, 63) & ~std::size_t{63};
    placed.private_bytes = layout.total_bytes;
    for (const auto& [root, index] : places) offsets_[root] = layout.offsets[index];
  }
}

// Says of the phases in runs where a slice's operands are.
void PlanBuilder::place_runs(Plan& plan) const {
  if (runs_.empty()) return;
  for (const PendingStep& step : steps_) {
    std::size_t operand = 0;
    for (const auto* ids : {&step.inputs, &step.outputs, &step.temporaries}) {
      for (const BufferId id : *ids) {
        const Buffer& used = buffer(id);
        SlicedOperand sliced{};
        if (is_private(static_cast<std::size_t>(used.root))) {
          sliced.is_private = true;
          sliced.offset = runs_[static_cast<std::size_t>(step.run)].private_at +
                          offsets_[static_cast<std::size_t>(used.root)] + used.offset;
        } else if (step.run >= 0 && operand < step.slices.size()) {
          sliced.step = step.slices[operand].step;
        }
        plan.sliced.push_back(sliced);
        ++operand;
      }
    }
  }
  for (std::size_t i = 0; i < phases_.size(); ++i) {
    const PendingStep& step = steps_[static_cast<std::size_t>(phases_[i].step)];
    if (step.run < 0) continue;
    const Run& run = runs_[static_cast<std::size_t>(step.run)];
    plan.phases[i].slices = run.slices;
    plan.phases[i].pointers = step.inputs.size() + step.outputs.size() + step.temporaries.size();
    plan.scratch_bytes = std::max(plan.scratch_bytes, run.private_at + run.private_bytes);
  }
}

}  // namespace engine
