// Named sets of options (--recipe). A recipe's options count as given, but a configuration file and
// the command line override them. If the user chooses another optimiser, the recipe's settings for
// its own optimiser (learning rate, momentum, decay, factors) do not apply. In a run of fewer
// epochs the recipe's warm-up is shortened in proportion.
//
// A new recipe is a row in recipes.cpp. A recipe whose model this program does not have is not
// offered.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dp {

struct Recipe {
  std::string name;
  std::string text;  // its description
  std::vector<std::pair<std::string, std::string>> options;

  // The value of an option, empty if the recipe does not set it.
  [[nodiscard]] std::string value_of(const std::string& option) const;
  // "--model resnet20 --epochs 164 ..."
  [[nodiscard]] std::string words() const;
};

[[nodiscard]] const std::vector<Recipe>& recipe_list();
// The recipes whose models are among these names; all recipes if there are no names.
[[nodiscard]] std::vector<Recipe> recipes_for(const std::vector<std::string>& models);
// Null if no recipe has that name.
[[nodiscard]] const Recipe* find_recipe(const std::string& name);

}  // namespace dp
