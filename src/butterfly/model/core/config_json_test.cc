#include "butterfly/model/core/config_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace butterfly {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Fails when two shapes would be taken for one.
TEST(ConfigJson, TellsShapesApart) {
  std::set<std::string> texts;
  for (const std::string& name : named_configs()) {
    ModelConfig config = *named_config(name);
    config.name.clear();
    texts.insert(to_json(config));
  }
  EXPECT_EQ(texts.size(), named_configs().size());
  ModelConfig config = *named_config("butterfly-demo");
  const std::string before = to_json(config);
  config.norm_epsilon = std::nextafter(config.norm_epsilon, 1.0f);
  EXPECT_NE(to_json(config), before);
}

// Fails when the text of a model changes that has nothing of the kind: no run could be continued.
TEST(ConfigJson, ChoicesOfOtherFamiliesAreLeftOutWhereTheyAreOff) {
  ModelConfig config = *named_config("butterfly-demo");
  for (const char* key : {"windows", "qk_norm", "local_rope", "logit_cap", "head_bias"}) {
    EXPECT_THAT(to_json(config), Not(HasSubstr(key)));
  }
  config.norm_place = NormPlace::kBoth;
  config.qk_norm = QkNorm::kWidth;
  config.windows = {0, 7, 0, 7, 7};
  config.logit_cap = 30.0f;
  config.head_bias = true;
  for (const char* entry :
       {"\"norm_place\":3", "\"qk_norm\":2", "\"windows\":[0,7,0,7,7]", "\"logit_cap\":30.0", "\"head_bias\":true"}) {
    EXPECT_THAT(to_json(config), HasSubstr(entry));
  }
}

}  // namespace
}  // namespace butterfly
