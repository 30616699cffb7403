// Recurrent cells against scalar loops in f64: every cell, direction and layout, both ways to divide the work.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/recurrent.hpp"
#include "kernels_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Problem {
  RecurrentShape shape;
  bool has_initial = true;
  bool has_peephole = false;
  std::vector<std::int32_t> lengths = {};
  float special = 0.0f;  // if not 0, replaces one value of the second sequence's projection
};

// The same values as dense arrays, by gate: projection [steps][batch][direction][gate][H] (time is always outermost),
// weights [direction][gate][k][H], states [direction][batch][H].
struct Data {
  std::vector<float> projection, weights, bias, peephole, h, c;
};

struct Result {
  std::vector<float> y, y_h, y_c;
};

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

class Reference {
 public:
  Reference(const Problem& problem, const Data& data) : problem_(problem), s_(problem.shape), data_(data) {
    result_.y.assign(s_.steps * s_.directions * s_.batch * s_.hidden, 0.0f);
    result_.y_h.resize(s_.directions * s_.batch * s_.hidden);
    result_.y_c.resize(result_.y_h.size());
  }

  Result run() {
    for (std::int64_t d = 0; d < s_.directions; ++d)
      for (std::int64_t b = 0; b < s_.batch; ++b) run_sequence(d, b);
    return result_;
  }

 private:
  double clip(double x) const { return x < -s_.clip ? -s_.clip : x > s_.clip ? s_.clip : x; }

  double gate(std::int64_t d, int g, std::int64_t unit, const std::vector<double>& h) const {
    const int gates = recurrent_gates(s_.cell);
    double sum = 0;
    for (std::int64_t k = 0; k < s_.hidden; ++k)
      sum += h[k] * data_.weights[((d * gates + g) * s_.hidden + k) * s_.hidden + unit];
    return sum;
  }

  double input(std::int64_t t, std::int64_t b, std::int64_t d, int g, std::int64_t unit) const {
    const int gates = recurrent_gates(s_.cell);
    return data_.projection[(((t * s_.batch + b) * s_.directions + d) * gates + g) * s_.hidden + unit];
  }

  double peephole(std::int64_t d, int which, std::int64_t unit) const {
    return problem_.has_peephole ? data_.peephole[(d * 3 + which) * s_.hidden + unit] : 0.0;
  }

  void step(std::int64_t t, std::int64_t d, std::int64_t b, std::vector<double>& h, std::vector<double>& c) const {
    const std::vector<double> before = h, cell = c;
    const auto x = [&](int g, std::int64_t u) { return input(t, b, d, g, u); };
    std::vector<double> reset(before);
    for (std::int64_t u = 0; u < s_.hidden && s_.cell == RecurrentCell::kGru; ++u)
      reset[u] = before[u] * sigmoid(clip(x(1, u) + gate(d, 1, u, before)));
    for (std::int64_t u = 0; u < s_.hidden; ++u) {
      if (s_.cell == RecurrentCell::kRnn) {
        const double sum = clip(x(0, u) + gate(d, 0, u, before));
        h[u] = s_.activation.activation == Activation::kTanh ? std::tanh(sum) : sum < 0 ? 0.0 : sum;
      } else if (s_.cell == RecurrentCell::kLstm) {
        const double i = sigmoid(clip(x(0, u) + gate(d, 0, u, before) + peephole(d, 0, u) * cell[u]));
        const double f =
            s_.input_forget ? 1 - i : sigmoid(clip(x(2, u) + gate(d, 2, u, before) + peephole(d, 2, u) * cell[u]));
        c[u] = f * cell[u] + i * std::tanh(clip(x(3, u) + gate(d, 3, u, before)));
        h[u] = sigmoid(clip(x(1, u) + gate(d, 1, u, before) + peephole(d, 1, u) * c[u])) * std::tanh(c[u]);
      } else {
        const double z = sigmoid(clip(x(0, u) + gate(d, 0, u, before)));
        const double r = sigmoid(clip(x(1, u) + gate(d, 1, u, before)));
        const double inner = s_.cell == RecurrentCell::kGru
                                 ? gate(d, 2, u, reset)
                                 : r * (gate(d, 2, u, before) + data_.bias[d * s_.hidden + u]);
        h[u] = (1 - z) * std::tanh(clip(x(2, u) + inner)) + z * before[u];
      }
    }
  }

  void run_sequence(std::int64_t d, std::int64_t b) {
    const std::int64_t state = (d * s_.batch + b) * s_.hidden;
    std::vector<double> h(s_.hidden), c(s_.hidden);
    for (std::int64_t u = 0; u < s_.hidden && problem_.has_initial; ++u) {
      h[u] = data_.h[state + u];
      c[u] = data_.c[state + u];
    }
    std::int64_t length = problem_.lengths.empty() ? s_.steps : problem_.lengths[b];
    length = length < 0 ? 0 : length > s_.steps ? s_.steps : length;
    const bool is_reversed = d == 1 || s_.reversed;
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t t = is_reversed ? length - 1 - i : i;
      step(t, d, b, h, c);
      for (std::int64_t u = 0; u < s_.hidden; ++u)
        result_.y[((t * s_.directions + d) * s_.batch + b) * s_.hidden + u] = static_cast<float>(h[u]);
    }
    for (std::int64_t u = 0; u < s_.hidden; ++u) {
      result_.y_h[state + u] = static_cast<float>(h[u]);
      result_.y_c[state + u] = static_cast<float>(c[u]);
    }
  }

  const Problem& problem_;
  const RecurrentShape& s_;
  const Data& data_;
  Result result_;
};

// Dense [outer][gates][rows of H] -> [outer][chunk][..][gate][16] as in recurrent.hpp.
std::vector<float> pack_weights(const RecurrentShape& s, const Data& data, std::int64_t padded) {
  const int gates = recurrent_gates(s.cell);
  std::vector<float> packed(recurrent_weight_floats(s), 0.0f);
  const std::int64_t second = s.directions * 2 * padded * padded;
  for (std::int64_t d = 0; d < s.directions; ++d)
    for (int g = 0; g < gates; ++g)
      for (std::int64_t k = 0; k < s.hidden; ++k)
        for (std::int64_t u = 0; u < s.hidden; ++u) {
          const bool is_apart = s.cell == RecurrentCell::kGru && g == 2;
          const int count = s.cell == RecurrentCell::kGru ? (is_apart ? 1 : 2) : gates;
          const std::int64_t chunk = d * padded / 16 + u / 16;
          const std::int64_t at = ((chunk * padded + k) * count + (is_apart ? 0 : g)) * 16 + u % 16;
          packed[(is_apart ? second : 0) + at] = data.weights[((d * gates + g) * s.hidden + k) * s.hidden + u];
        }
  return packed;
}

std::vector<float> pack_projection(const RecurrentShape& s, const Data& data, std::int64_t padded) {
  const int gates = recurrent_gates(s.cell);
  // Lanes beyond H are undefined.
  std::vector<float> packed(s.steps * s.batch * s.directions * gates * padded, kNan);
  for (std::int64_t t = 0; t < s.steps; ++t)
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t d = 0; d < s.directions; ++d)
        for (int g = 0; g < gates; ++g)
          for (std::int64_t u = 0; u < s.hidden; ++u) {
            const std::int64_t row = s.batch_first ? b * s.steps + t : t * s.batch + b;
            const std::int64_t at = (row * s.directions + d) * gates * padded + u / 16 * gates * 16 + g * 16 + u % 16;
            packed[at] = data.projection[(((t * s.batch + b) * s.directions + d) * gates + g) * s.hidden + u];
          }
  return packed;
}

std::vector<float> pad_rows(const std::vector<float>& values, std::int64_t hidden, std::int64_t padded) {
  std::vector<float> wide(values.size() / hidden * padded, 0.0f);
  for (std::size_t i = 0; i < values.size(); ++i) wide[i / hidden * padded + i % hidden] = values[i];
  return wide;
}

// [outer][direction][batch][H] <-> [batch][outer][direction][H], for y (outer: steps) and states (outer: 1).
std::vector<float> swapped(const RecurrentShape& s, const std::vector<float>& from, std::int64_t outer, bool to_batch) {
  if (!s.batch_first) return from;
  std::vector<float> to(from.size());
  for (std::int64_t t = 0; t < outer; ++t)
    for (std::int64_t d = 0; d < s.directions; ++d)
      for (std::int64_t b = 0; b < s.batch; ++b)
        for (std::int64_t u = 0; u < s.hidden; ++u) {
          const std::int64_t plain = ((t * s.directions + d) * s.batch + b) * s.hidden + u;
          const std::int64_t batch = ((b * outer + t) * s.directions + d) * s.hidden + u;
          to[to_batch ? batch : plain] = from[to_batch ? plain : batch];
        }
  return to;
}

Data make_data(const Problem& problem) {
  const RecurrentShape& s = problem.shape;
  const int gates = recurrent_gates(s.cell);
  Data data;
  data.projection = random_floats(s.steps * s.batch * s.directions * gates * s.hidden, 1);
  data.weights = random_floats(s.directions * gates * s.hidden * s.hidden, 2);
  for (float& weight : data.weights) weight *= 2.0f / std::sqrt(static_cast<float>(s.hidden));
  data.bias = random_floats(s.directions * s.hidden, 3);
  data.peephole = random_floats(s.directions * 3 * s.hidden, 4);
  data.h = random_floats(s.directions * s.batch * s.hidden, 5);
  data.c = random_floats(s.directions * s.batch * s.hidden, 6);
  if (problem.special != 0.0f)  // the first time step of the second sequence
    data.projection[(1 * s.directions + s.directions - 1) * gates * s.hidden + s.hidden / 2] = problem.special;
  return data;
}

void run_split(const Target& target, const RecurrentArgs& base, const std::vector<void*>& buffers, bool is_units,
               int workers) {
  if (!is_units) return run(target.find("recurrent_sequence_f32"), &base, buffers, workers, 0);
  RecurrentArgs args = base;
  run(target.find("recurrent_begin_f32"), &args, buffers, workers, 0);
  const int parts = args.shape.cell == RecurrentCell::kGru ? 2 : 1;
  for (args.step = 0; args.step < args.shape.steps; ++args.step)
    for (args.part = 0; args.part < parts; ++args.part)
      run(target.find("recurrent_step_f32"), &args, buffers, workers, 0);
}

std::string describe(const Problem& problem) {
  const RecurrentShape& s = problem.shape;
  return "cell" + std::to_string(static_cast<int>(s.cell)) + " T" + std::to_string(s.steps) + " B" +
         std::to_string(s.batch) + " H" + std::to_string(s.hidden) + " D" + std::to_string(s.directions) +
         (s.reversed ? " reversed" : "") + (s.batch_first ? " batch first" : "") +
         (problem.lengths.empty() ? "" : " lengths");
}

void check(const Target& target, const Problem& problem) {
  const RecurrentShape& s = problem.shape;
  const Data data = make_data(problem);
  const std::int64_t padded = (s.hidden + 15) / 16 * 16, plane = s.directions * s.batch * padded;
  const bool is_lstm = s.cell == RecurrentCell::kLstm;
  const Result expected = Reference(problem, data).run();
  Guarded projection(pack_projection(s, data, padded)), weights(pack_weights(s, data, padded)),
      bias(pad_rows(data.bias, s.hidden, padded)), peephole(pad_rows(data.peephole, s.hidden, padded)),
      h(swapped(s, data.h, 1, true)), c(swapped(s, data.c, 1, true));
  std::vector<std::int32_t> lengths = problem.lengths;
  RecurrentOperands o;
  o.recurrent_bias = s.cell == RecurrentCell::kGruLinear ? 2 : -1;
  o.lengths = lengths.empty() ? -1 : 3;
  o.initial_h = problem.has_initial ? 4 : -1;
  o.initial_c = problem.has_initial && is_lstm ? 5 : -1;
  o.peephole = problem.has_peephole ? 6 : -1;
  o.y = 7;
  o.y_h = 8;
  o.y_c = is_lstm ? 9 : -1;
  o.state_h = 10;
  o.state_c = is_lstm ? 11 : -1;
  o.update = o.reset = -1;
  if (s.cell == RecurrentCell::kGru) {
    o.update = 12;
    o.reset = 13;
  }
  const RecurrentArgs args = make_recurrent_args(s, o);
  for (const bool is_units : {false, true})
    for (const int workers : {1, 3}) {
      Guarded y(expected.y.size(), kNan), y_h(expected.y_h.size(), kNan), y_c(expected.y_c.size(), kNan),
          state(2 * plane, kNan), cell(plane, kNan), update(plane, kNan), reset(plane, kNan);
      run_split(target, args,
                {projection.data(), weights.data(), bias.data(), lengths.data(), h.data(), c.data(), peephole.data(),
                 y.data(), y_h.data(), y_c.data(), state.data(), cell.data(), update.data(), reset.data()},
                is_units, workers);
      const std::string what = describe(problem) + (is_units ? " units" : " sequences");
      expect(y.intact() && y_h.intact() && y_c.intact() && state.intact() && cell.intact() && update.intact() &&
                 reset.intact(),
             what + ": overrun");
      // The gates damp or propagate the errors of a step: at most one step's error for each step.
      const double tolerance = sum_tolerance(s.hidden) * static_cast<double>(s.steps + 1);
      expect_close(expected.y, swapped(s, y.values(), s.steps, false), tolerance, what + " Y");
      expect_close(expected.y_h, swapped(s, y_h.values(), 1, false), tolerance, what + " Y_h");
      if (is_lstm) expect_close(expected.y_c, swapped(s, y_c.values(), 1, false), tolerance, what + " Y_c");
    }
}

constexpr RecurrentCell kCells[] = {RecurrentCell::kRnn, RecurrentCell::kLstm, RecurrentCell::kGru,
                                    RecurrentCell::kGruLinear};

RecurrentShape shape_of(RecurrentCell cell, std::int64_t steps, std::int64_t batch, std::int64_t hidden,
                        std::int64_t directions) {
  RecurrentShape s;
  s.cell = cell;
  s.steps = steps;
  s.batch = batch;
  s.hidden = hidden;
  s.directions = directions;
  s.activation.activation = Activation::kTanh;
  return s;
}

void sizes(const Target& target) {
  for (const RecurrentCell cell : kCells)
    for (const std::int64_t hidden : {1, 15, 16, 17, 40})
      for (const std::int64_t batch : {0, 1, 2, 3, 5, 6, 7, 8, 9, 17})
        for (const std::int64_t directions : {1, 2}) {
          Problem problem{shape_of(cell, 3, batch, hidden, directions)};
          problem.shape.batch_first = batch % 2 == 1;
          check(target, problem);
        }
}

void variants(const Target& target) {
  for (const RecurrentCell cell : kCells)
    for (const std::int64_t steps : {0, 1, 5})
      for (const bool flag : {false, true}) {
        Problem problem{shape_of(cell, steps, 3, 20, 1), flag};
        problem.shape.reversed = true;
        check(target, problem);
        problem.shape.clip = 0.3f;
        problem.shape.batch_first = true;
        if (cell == RecurrentCell::kRnn) problem.shape.activation = {Activation::kClip, 0.0f, kInf, false};
        problem.shape.input_forget = flag && cell == RecurrentCell::kLstm;
        problem.has_peephole = cell == RecurrentCell::kLstm;
        check(target, problem);
        problem.shape.reversed = false;
        problem.shape.directions = 2;
        problem.lengths = {4, 0, 5};
        check(target, problem);
        problem.shape.batch_first = false;
        problem.lengths = {-3, 100, 1};
        check(target, problem);
      }
}

void not_finite(const Target& target) {
  for (const RecurrentCell cell : kCells)
    for (const float special : {kNan, kInf, -kInf}) {
      Problem problem{shape_of(cell, 4, 3, 20, 2)};
      problem.special = special;
      check(target, problem);
    }
}

}  // namespace

int main() {
  return run_cases({{"sizes", sizes}, {"variants", variants}, {"not finite", not_finite}});
}
