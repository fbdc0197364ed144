// An operator and a class of C++ that torch.export can see through. build.py makes a library of them:
//
//     python examples/custom_ops/build.py -o libsignal_ops.so

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>

namespace {

// limit * tanh(x / limit), on real data.
at::Tensor soft_clip_cpu(const at::Tensor& x, double limit) {
  TORCH_CHECK(limit > 0, "soft_clip: limit must be positive, not ", limit);
  return at::tanh(x / limit) * limit;
}

// What an export needs to know of it: shape, dtype and device of the result.
at::Tensor soft_clip_meta(const at::Tensor& x, double limit) {
  return at::empty_like(x);
}

// The terms c_k x^k of a polynomial, side by side in a new last dimension.
struct Polynomial : torch::CustomClassHolder {
  explicit Polynomial(std::vector<double> coefficients) : coefficients_(std::move(coefficients)) {
    TORCH_CHECK(!coefficients_.empty(), "Polynomial: no coefficients");
  }

  at::Tensor terms(const at::Tensor& x) const {
    std::vector<at::Tensor> found;
    at::Tensor power = at::ones_like(x);
    for (double coefficient : coefficients_) {
      found.push_back(power * coefficient);
      power = power * x;
    }
    return at::stack(found, -1);
  }

  std::vector<double> coefficients() const { return coefficients_; }

  // The state as names and values, from which the fake class is made.
  std::tuple<std::tuple<std::string, std::vector<double>>> flattened() const {
    return {{"coefficients", coefficients_}};
  }

 private:
  std::vector<double> coefficients_;
};

}  // namespace

TORCH_LIBRARY(signal_ops, m) {
  m.def("soft_clip(Tensor x, float limit) -> Tensor");
  m.class_<Polynomial>("Polynomial")
      .def(torch::init<std::vector<double>>())
      .def("terms", &Polynomial::terms)
      .def("__obj_flatten__", &Polynomial::flattened)
      .def_pickle(
          [](const c10::intrusive_ptr<Polynomial>& self) { return self->coefficients(); },
          [](std::vector<double> state) { return c10::make_intrusive<Polynomial>(std::move(state)); });
}

TORCH_LIBRARY_IMPL(signal_ops, CPU, m) {
  m.impl("soft_clip", &soft_clip_cpu);
}

TORCH_LIBRARY_IMPL(signal_ops, Meta, m) {
  m.impl("soft_clip", &soft_clip_meta);
}
