#include "program.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fault.hpp"

namespace runner {
namespace {

// Returns the tensor densely in this memory order, because compiled code ignores the strides of its inputs.
at::Tensor laid_out(const at::Tensor& tensor, const Shape& order) {
  Shape back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  return tensor.permute(order).contiguous().permute(back);
}

}  // namespace

Program::Program(const std::filesystem::path& package, PackageDescription description, TensorsByName weights)
    : description_(std::move(description)), weights_(std::move(weights)), loader_(package.string(), description_.code) {
  if (description_.has_weights_beside) bind();
}

void Program::bind() {
  const at::Device device(description_.device);
  std::unordered_map<std::string, at::Tensor> bound;
  for (auto& [name, weight] : weights_) {
    weight = weight.to(device);
    bound.emplace(name, weight);
  }
  const std::vector<std::string> names = loader_.get_constant_fqns();
  if (bound.size() != names.size() ||
      !std::all_of(names.begin(), names.end(), [&](auto& name) { return bound.count(name); })) {
    throw Fault("the compiled code expects different weights than its description lists");
  }
  if (bound.empty()) return;
  loader_.load_constants(bound, /*use_inactive=*/false, /*check_full_update=*/true, /*user_managed=*/true);
}

NamedTensors Program::run(const TensorsByName& inputs) {
  const at::NoGradGuard no_gradients;
  const at::Device device(description_.device);
  std::vector<at::Tensor> arguments;
  for (std::size_t i = 0; i < description_.orders.size(); ++i) {
    const std::string& name = description_.signature.inputs[i].name;
    arguments.push_back(laid_out(inputs.at(name).to(device), description_.orders[i]));
  }
  std::vector<at::Tensor> results = loader_.run(arguments);
  const std::vector<OutputLeaf>& leaves = description_.signature.outputs;
  if (results.size() != leaves.size()) {
    throw Fault("the package returned " + std::to_string(results.size()) + " outputs, but its description lists " +
                std::to_string(leaves.size()));
  }
  NamedTensors named;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].is_tensor) named.emplace_back(leaves[i].name, std::move(results[i]));
  }
  return named;
}

}  // namespace runner
