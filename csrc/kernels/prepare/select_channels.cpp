// select_channels_f32: sources -> destination, maps in blocks of 16 channels. Attributes:
//
//   batch, pixels          of all maps
//   channels               of each source
//   ranges                 four integers for each consecutive run of channels of the destination:
//                          source, first channel, step (may be negative or zero), number of channels
#include "kernels/select_channels.hpp"

#include <algorithm>
#include <string>

#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestSelectChannels = std::int64_t{1} << 24;  // channels

struct Channel {
  std::int32_t operand;
  std::int64_t channel;
};

std::vector<Channel> read_channels(const Attributes& attributes, const std::vector<std::int64_t>& channels) {
  const auto& ranges = attributes.integers("ranges");
  if (ranges.size() % 4 != 0) {
    throw PlanError("attribute \"ranges\" has " + std::to_string(ranges.size()) + " values; expected a multiple of 4");
  }
  std::vector<Channel> selected;
  for (std::size_t i = 0; i < ranges.size(); i += 4) {
    const std::int64_t source = ranges[i], first = ranges[i + 1], step = ranges[i + 2], count = ranges[i + 3];
    const std::int64_t limit =
        source >= 0 && source < static_cast<std::int64_t>(channels.size()) ? channels[source] : 0;
    if (count < 0 || count > kLargestSelectChannels || step > kLargestSelectChannels ||
        step < -kLargestSelectChannels || first < 0 || first > kLargestSelectChannels ||
        (count > 0 && (first >= limit || first + step * (count - 1) < 0 || first + step * (count - 1) >= limit))) {
      throw PlanError(std::to_string(count) + " channels from " + std::to_string(first) + " in steps of " +
                      std::to_string(step) + " are not within the " + std::to_string(limit) + " channels of source " +
                      std::to_string(source));
    }
    for (std::int64_t k = 0; k < count; ++k) selected.push_back({static_cast<std::int32_t>(source), first + k * step});
    if (selected.size() > static_cast<std::size_t>(kLargestSelectChannels))
      throw PlanError("more than 2^24 channels are selected");
  }
  return selected;
}

// Collects the tables of a step.
struct Selection {
  std::int64_t pixels;
  std::vector<std::int64_t> batches;  // floats of an image of each source
  std::vector<SelectTarget> targets;
  std::vector<SelectSource> sources;

  SelectSource source(const Channel& channel, std::int64_t lanes) const {
    SelectSource made = {};
    made.operand = channel.operand;
    made.is_identity = 1;
    made.offset = channel.channel / 16 * 16 * pixels + channel.channel % 16 / lanes * lanes;
    made.batch = batches[static_cast<std::size_t>(channel.operand)];
    return made;
  }

  // Adds channels [begin, end) of the destination, possibly none, as one vector at each pixel.
  void add_vector(const std::vector<Channel>& channels, std::size_t begin, std::size_t end, std::int64_t lanes) {
    SelectTarget target = {};
    target.first_source = static_cast<std::int32_t>(sources.size());
    target.offset = static_cast<std::int64_t>(begin) / 16 * 16 * pixels + static_cast<std::int64_t>(begin) % 16;
    for (std::size_t c = begin; c < end; ++c) {
      SelectSource wanted = source(channels[c], lanes);
      const auto found = std::find_if(sources.begin() + target.first_source, sources.end(), [&](const auto& other) {
        return other.operand == wanted.operand && other.offset == wanted.offset;
      });
      SelectSource& from = found != sources.end() ? *found : sources.emplace_back(wanted);
      from.index[c - begin] = static_cast<std::int32_t>(channels[c].channel % lanes);
      from.mask[c - begin] = -1;
      if (from.index[c - begin] != static_cast<std::int32_t>(c - begin)) from.is_identity = 0;
    }
    target.sources = static_cast<std::int32_t>(sources.size()) - target.first_source;
    // Lanes without a channel are undefined, in the source as well.
    target.is_block = lanes == 16 && target.sources == 1 && sources.back().is_identity;
    targets.push_back(target);
  }

  void add_block(const std::vector<Channel>& channels, std::size_t begin, std::int64_t lanes) {
    const auto end_of = [&](std::size_t from, std::int64_t width) {
      return std::min(channels.size(), from + static_cast<std::size_t>(width));
    };
    const Selection before = {pixels, batches, {}, {}};
    Selection whole = before;
    whole.add_vector(channels, begin, end_of(begin, 16), 16);
    if (whole.targets[0].is_block || lanes == 16) {
      add_vector(channels, begin, end_of(begin, 16), 16);
      return;
    }
    for (std::size_t at = begin; at < begin + 16; at += static_cast<std::size_t>(lanes))
      add_vector(channels, at, end_of(at, lanes), lanes);
  }
};

PreparedPhase make_phase(const KernelEntry& kernel, SelectChannelsArgs args, const Selection& selection) {
  args.targets = static_cast<std::int64_t>(selection.targets.size());
  const std::size_t targets_bytes = selection.targets.size() * sizeof(SelectTarget);
  const std::size_t sources_bytes = selection.sources.size() * sizeof(SelectSource);
  args.sources_offset = static_cast<std::int64_t>((sizeof args + targets_bytes + 63) / 64 * 64);
  PreparedPhase phase = PreparedPhase::of(kernel, args);
  phase.args.resize(static_cast<std::size_t>(args.sources_offset) + sources_bytes);
  if (targets_bytes > 0) std::memcpy(phase.args.data() + sizeof args, selection.targets.data(), targets_bytes);
  if (sources_bytes > 0) std::memcpy(phase.args.data() + args.sources_offset, selection.sources.data(), sources_bytes);
  return phase;
}

PreparedStep prepare_select_channels_f32(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  SelectChannelsArgs args = {};
  args.batch = attributes.integer("batch", 0, std::int64_t{1} << 30);
  args.pixels = attributes.integer("pixels", 0, std::int64_t{1} << 30);
  const auto channels = read_shape(attributes, "channels", -1, 1 << 16);
  const std::vector<Channel> selected = read_channels(attributes, channels);
  request.expect_operands(channels.size(), 1);
  Selection selection = {args.pixels, {}, {}, {}};
  for (std::size_t i = 0; i < channels.size(); ++i) {
    if (channels[i] > kLargestSelectChannels)
      throw PlanError("a source has " + std::to_string(channels[i]) + " channels");
    request.expect_input(i, blocked_bytes(args.batch, channels[i], args.pixels, 1));
    selection.batches.push_back((channels[i] + 15) / 16 * 16 * args.pixels);
  }
  const auto count = static_cast<std::int64_t>(selected.size());
  const std::size_t bytes = blocked_bytes(args.batch, count, args.pixels, 1);
  request.expect_output(0, bytes);
  args.destination = static_cast<std::int64_t>(channels.size());
  args.destination_batch = (count + 15) / 16 * 16 * args.pixels;
  const KernelEntry& kernel = request.kernels.find("select_channels_f32");
  const int lanes = static_cast<const SelectChannelsTraits*>(kernel.traits)->lanes;
  for (std::size_t begin = 0; begin < selected.size(); begin += 16) selection.add_block(selected, begin, lanes);
  PreparedPhase phase = make_phase(kernel, args, selection);
  phase.max_workers = workers_for_bytes(static_cast<double>(bytes));
  return one_phase(std::move(phase), 0, 0);
}

}  // namespace

extern const OperationEntry select_channels_operations[] = {{"select_channels_f32", prepare_select_channels_f32}, {}};

}  // namespace engine
