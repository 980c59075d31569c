#include "butterfly/text/grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "butterfly/base/text/printable.h"
#include "butterfly/text/grammar/grammar_builder.h"
#include "butterfly/text/grammar/json_formats.h"
#include "butterfly/text/grammar/json_numbers.h"
#include "butterfly/text/grammar/json_pieces.h"
#include "butterfly/text/grammar/regex.h"

namespace butterfly {
namespace {

using Json = nlohmann::ordered_json;
using Expr = GrammarBuilder::Expr;
using Rule = GrammarBuilder::Rule;

constexpr int kSchemaDepth = 64;
constexpr int kValueDepth = 400;
constexpr std::size_t kSchemaBytes = 1 << 20;
constexpr std::uint32_t kCountsMost = 100'000;

constexpr std::array<std::string_view, 7> kTypes{"object", "array", "string", "number", "integer", "boolean", "null"};

/// They say nothing of what is valid.
const std::set<std::string_view> kDescribing{"title", "description", "default",    "examples", "$schema",
                                             "$id",   "$comment",    "deprecated", "readOnly", "writeOnly",
                                             "$defs", "definitions", "$anchor",    "example"};

/// Keywords by the type that they are about.
const std::map<std::string_view, std::string_view> kOfType{
    {"properties", "object"}, {"required", "object"},         {"additionalProperties", "object"},
    {"items", "array"},       {"minItems", "array"},          {"maxItems", "array"},
    {"uniqueItems", "array"}, {"pattern", "string"},          {"format", "string"},
    {"minLength", "string"},  {"maxLength", "string"},        {"minimum", "number"},
    {"maximum", "number"},    {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"},
    {"multipleOf", "number"}};

bool has_type(const Json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
}

/// Deeper ones are not looked at: whatever walks through them would run out of stack.
bool is_too_deep(const Json& schema) {
  std::vector<std::pair<const Json*, int>> open{{&schema, 0}};
  while (!open.empty()) {
    const auto [value, depth] = open.back();
    open.pop_back();
    if (depth > kValueDepth) return true;
    if (!value->is_structured()) continue;
    for (const Json& element : *value) open.emplace_back(&element, depth + 1);
  }
  return false;
}

class SchemaCompiler {
 public:
  explicit SchemaCompiler(const Json& root) : root_(root), pieces_(builder_) {}
  Result<std::shared_ptr<const Grammar>> run();

 private:
  /// A schema and where it stands.
  struct At {
    const Json& schema;
    const std::string& path;
    int depth = 0;

    bool has(const char* key) const { return schema.contains(key); }
    const Json& operator[](const char* key) const { return *schema.find(key); }
  };

  tl::unexpected<Error> refuse(const At& at, std::string_view what) const {
    return make_error(ErrorCode::kInvalidArgument, "the schema at {}: {}", printable(at.path), what);
  }
  Result<Expr> compile(const Json& schema, const std::string& path, int depth);
  Result<Expr> compile_rule(const Json& schema, const std::string& path, int depth);
  Status check_keywords(const At& at) const;
  Result<std::optional<Expr>> compile_combined(const At& at);
  Result<Expr> compile_constants(const At& at, const std::vector<Json>& values);
  Result<Expr> compile_reference(const At& at);
  Result<std::vector<std::string>> types_of(const At& at) const;
  Result<Expr> compile_type(const At& at, std::string_view type);
  Result<Expr> compile_object(const At& at);
  Result<std::optional<Expr>> compile_further(const At& at);
  Result<Expr> compile_array(const At& at);
  Result<Expr> compile_string(const At& at);
  Result<Expr> compile_pattern(const At& at);
  Result<Expr> compile_number(const At& at, bool whole);
  Result<std::uint32_t> count(const At& at, const char* key, std::uint32_t standard) const;
  Result<const Json*> find(const std::string& reference, const At& at) const;
  Result<std::set<std::string>> required_of(const At& at) const;

  const Json& root_;
  GrammarBuilder builder_;
  JsonPieces pieces_;
  std::map<std::string, Rule> references_;
  struct Pending {
    Rule rule = 0;
    const Json* schema = nullptr;
    std::string path;
  };
  std::vector<Pending> pending_;
};

Status SchemaCompiler::check_keywords(const At& at) const {
  static const std::set<std::string_view> kOther{"type", "enum", "const", "anyOf", "allOf", "oneOf", "$ref"};
  for (const auto& [key, value] : at.schema.items()) {
    const std::string_view name(key);
    if (kDescribing.contains(name) || kOther.contains(name) || kOfType.contains(name)) continue;
    return refuse(at, fmt::format("the keyword {} is none that can be kept to", printable(key)));
  }
  for (const char* key : {"anyOf", "allOf", "oneOf", "$ref", "enum", "const"}) {
    if (!at.has(key)) continue;
    for (const auto& [other, value] : at.schema.items()) {
      const bool typed = other == "type" && (std::string_view(key) == "enum" || std::string_view(key) == "const");
      if (other == key || typed || kDescribing.contains(std::string_view(other))) continue;
      return refuse(at, fmt::format("{} beside {} cannot be kept to", printable(other), key));
    }
  }
  return {};
}

Result<std::uint32_t> SchemaCompiler::count(const At& at, const char* key, std::uint32_t standard) const {
  if (!at.has(key)) return standard;
  const Json& value = at[key];
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!(number >= 0 && number <= kCountsMost) || number != static_cast<double>(static_cast<std::uint32_t>(number))) {
    return refuse(at, fmt::format("{} is {}, expected a whole number from 0 to {}", key, printable(dump_json(value)),
                                  kCountsMost));
  }
  return static_cast<std::uint32_t>(number);
}

Result<std::vector<std::string>> SchemaCompiler::types_of(const At& at) const {
  std::vector<std::string> types;
  if (at.has("type")) {
    const Json& given = at["type"];
    const Json list = given.is_array() ? given : Json::array({given});
    for (const Json& type : list) {
      if (!type.is_string() || std::ranges::find(kTypes, type.get<std::string>()) == kTypes.end()) {
        return refuse(at, fmt::format("type is {}, expected object, array, string, number, integer, boolean or null",
                                      printable(dump_json(given))));
      }
      types.push_back(type.get<std::string>());
    }
    if (types.empty()) return refuse(at, "type is an empty list");
    return types;
  }
  for (const auto& [key, value] : at.schema.items()) {
    const auto found = kOfType.find(std::string_view(key));
    if (found == kOfType.end()) continue;
    if (std::ranges::find(types, found->second) == types.end()) types.emplace_back(found->second);
  }
  return types;
}

Result<Expr> SchemaCompiler::compile(const Json& schema, const std::string& path, int depth) {
  const At at{schema, path, depth};
  if (depth > kSchemaDepth) return refuse(at, fmt::format("more than {} schemas within each other", kSchemaDepth));
  if (schema.is_boolean()) {
    if (schema.get<bool>()) return pieces_.value();
    return refuse(at, "false allows nothing");
  }
  if (!schema.is_object()) {
    return refuse(at, fmt::format("it is {}, expected an object or true", printable(schema.type_name())));
  }
  BF_TRY(check_keywords(at));
  BF_ASSIGN_OR_RETURN(const std::optional<Expr> combined, compile_combined(at));
  if (combined) return *combined;
  BF_ASSIGN_OR_RETURN(const std::vector<std::string> types, types_of(at));
  if (types.empty()) return pieces_.value();
  std::vector<Expr> options;
  for (const std::string& type : types) {
    BF_ASSIGN_OR_RETURN(const Expr option, compile_type(at, type));
    options.push_back(option);
  }
  return builder_.choice(std::move(options));
}

/// As a rule: where the expression stands more than once.
Result<Expr> SchemaCompiler::compile_rule(const Json& schema, const std::string& path, int depth) {
  BF_ASSIGN_OR_RETURN(const Expr expr, compile(schema, path, depth));
  const Rule rule = builder_.add_rule(path);
  builder_.set_rule(rule, expr);
  return builder_.call(rule);
}

/// What stands for the whole schema: constants, choices, references.
Result<std::optional<Expr>> SchemaCompiler::compile_combined(const At& at) {
  if (at.has("$ref")) {
    BF_ASSIGN_OR_RETURN(const Expr expr, compile_reference(at));
    return expr;
  }
  if (at.has("const")) {
    BF_ASSIGN_OR_RETURN(const Expr expr, compile_constants(at, {at["const"]}));
    return expr;
  }
  if (at.has("enum")) {
    if (!at["enum"].is_array()) return refuse(at, "enum is no list");
    BF_ASSIGN_OR_RETURN(const Expr expr, compile_constants(at, {at["enum"].begin(), at["enum"].end()}));
    return expr;
  }
  for (const char* key : {"anyOf", "allOf", "oneOf"}) {
    if (!at.has(key)) continue;
    const Json& given = at[key];
    if (!given.is_array() || given.empty()) return refuse(at, fmt::format("{} is no list of schemas", key));
    if (std::string_view(key) != "anyOf" && given.size() > 1) {
      return refuse(at, fmt::format("{} of {} schemas cannot be kept to, only of one", key, given.size()));
    }
    std::vector<Expr> options;
    for (std::size_t i = 0; i < given.size(); ++i) {
      BF_ASSIGN_OR_RETURN(const Expr option, compile(given[i], fmt::format("{}/{}/{}", at.path, key, i), at.depth + 1));
      options.push_back(option);
    }
    return builder_.choice(std::move(options));
  }
  return std::optional<Expr>{};
}

Result<Expr> SchemaCompiler::compile_constants(const At& at, const std::vector<Json>& values) {
  BF_ASSIGN_OR_RETURN(const std::vector<std::string> types, types_of(at));
  std::vector<std::string> plain;
  std::vector<Expr> options;
  for (const Json& value : values) {
    const bool fits =
        types.empty() || std::ranges::any_of(types, [&](const auto& type) { return has_type(value, type); });
    if (!fits) continue;
    if (value.is_structured() && !value.empty()) {
      options.push_back(pieces_.constant(value));
    } else {
      plain.push_back(dump_json(value));
    }
  }
  if (!plain.empty()) options.push_back(builder_.any_of(plain));
  if (options.empty()) return refuse(at, "none of its constants has its type");
  return builder_.choice(std::move(options));
}

/// What "#/$defs/name" is.
Result<const Json*> SchemaCompiler::find(const std::string& reference, const At& at) const {
  if (!reference.starts_with('#')) return refuse(at, fmt::format("$ref {} leads out of it", printable(reference)));
  const Json* found = &root_;
  std::string_view rest = std::string_view(reference).substr(1);
  while (!rest.empty()) {
    if (rest.front() != '/') return refuse(at, fmt::format("$ref {} is no path", printable(reference)));
    rest.remove_prefix(1);
    std::string step(rest.substr(0, rest.find('/')));
    rest.remove_prefix(step.size());
    for (const auto& [code, sign] : {std::pair{"~1", "/"}, std::pair{"~0", "~"}}) {
      for (std::size_t p = 0; (p = step.find(code, p)) != std::string::npos; ++p) step.replace(p, 2, sign);
    }
    const Json* next = nullptr;
    if (found->is_object()) {
      const auto member = found->find(step);
      if (member != found->end()) next = &*member;
    } else if (found->is_array()) {
      std::size_t index = 0;
      const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), index);
      const bool whole = error == std::errc{} && end == step.data() + step.size();
      if (whole && index < found->size()) next = &(*found)[index];
    }
    if (next == nullptr) return refuse(at, fmt::format("$ref {} leads nowhere", printable(reference)));
    found = next;
  }
  return found;
}

Result<Expr> SchemaCompiler::compile_reference(const At& at) {
  if (!at["$ref"].is_string()) return refuse(at, "$ref is no text");
  const std::string reference = at["$ref"].get<std::string>();
  const auto known = references_.find(reference);
  if (known != references_.end()) return builder_.call(known->second);
  BF_ASSIGN_OR_RETURN(const Json* schema, find(reference, at));
  const Rule rule = builder_.add_rule(reference);
  references_[reference] = rule;
  pending_.push_back({rule, schema, reference});
  return builder_.call(rule);
}

Result<Expr> SchemaCompiler::compile_type(const At& at, std::string_view type) {
  if (type == "object") return compile_object(at);
  if (type == "array") return compile_array(at);
  if (type == "string") return compile_string(at);
  if (type == "number") return compile_number(at, false);
  if (type == "integer") return compile_number(at, true);
  return type == "boolean" ? pieces_.boolean() : pieces_.null();
}

Result<std::set<std::string>> SchemaCompiler::required_of(const At& at) const {
  std::set<std::string> required;
  if (!at.has("required")) return required;
  if (!at["required"].is_array()) return refuse(at, "required is no list");
  for (const Json& name : at["required"]) {
    if (!name.is_string()) return refuse(at, "required has a name that is no text");
    required.insert(name.get<std::string>());
  }
  return required;
}

/// A member that the schema does not name; nothing where there may be none.
Result<std::optional<Expr>> SchemaCompiler::compile_further(const At& at) {
  const bool named = at.has("properties") && !at["properties"].empty();
  const Json further = at.has("additionalProperties") ? at["additionalProperties"] : Json(!named);
  if (further.is_boolean() && !further.get<bool>()) return std::optional<Expr>{};
  BF_ASSIGN_OR_RETURN(const Expr value, compile_rule(further, at.path + "/additionalProperties", at.depth + 1));
  if (!named) return builder_.sequence({pieces_.string(), pieces_.colon(), value});
  std::vector<std::string> keys;
  for (const auto& [key, schema] : at["properties"].items()) keys.push_back(key);
  return builder_.sequence({pieces_.other_key(keys), pieces_.colon(), value});
}

/// Properties in order: from node i, before which none was written, and from node size + 1 + i, before which one was.
Result<Expr> SchemaCompiler::compile_object(const At& at) {
  const Json none = Json::object();
  const Json& properties = at.has("properties") ? at["properties"] : none;
  if (!properties.is_object()) return refuse(at, "properties is no object");
  BF_ASSIGN_OR_RETURN(std::set<std::string> required, required_of(at));
  BF_ASSIGN_OR_RETURN(const std::optional<Expr> further, compile_further(at));
  const auto size = static_cast<std::uint32_t>(properties.size());
  std::vector<GrammarBuilder::Edge> edges;
  const auto begun = [&](std::uint32_t i) { return size + 1 + i; };
  bool first_reached = true;
  bool begun_reached = false;
  std::uint32_t i = 0;
  for (const auto& [key, schema] : properties.items()) {
    const std::string path = fmt::format("{}/properties/{}", at.path, key);
    const bool twice = first_reached && begun_reached;
    BF_ASSIGN_OR_RETURN(const Expr value,
                        twice ? compile_rule(schema, path, at.depth + 1) : compile(schema, path, at.depth + 1));
    const Expr member = builder_.sequence({builder_.bytes(dump_json(nlohmann::json(key))), pieces_.colon(), value});
    const bool optional = required.erase(key) == 0;
    if (first_reached) edges.push_back({.from = i, .to = begun(i + 1), .expr = member});
    if (begun_reached) {
      edges.push_back({.from = begun(i), .to = begun(i + 1), .expr = builder_.sequence({pieces_.comma(), member})});
    }
    if (optional && first_reached) edges.push_back({.from = i, .to = i + 1, .expr = builder_.empty()});
    if (optional && begun_reached) edges.push_back({.from = begun(i), .to = begun(i + 1), .expr = builder_.empty()});
    first_reached = first_reached && optional;
    begun_reached = true;
    ++i;
  }
  if (!required.empty()) {
    return refuse(at, fmt::format("required names {}, which is none of its properties", printable(*required.begin())));
  }
  if (further) {
    edges.push_back({.from = size, .to = begun(size), .expr = *further});
    edges.push_back({.from = begun(size), .to = begun(size), .expr = builder_.sequence({pieces_.comma(), *further})});
  }
  const std::uint32_t end = begun(size) + 1;
  edges.push_back({.from = begun(size), .to = end, .expr = pieces_.gap()});
  const Expr inside = builder_.graph(end + 1, std::move(edges), {size, end});
  return builder_.sequence({builder_.bytes("{"), pieces_.gap(), inside, builder_.bytes("}")});
}

Result<Expr> SchemaCompiler::compile_array(const At& at) {
  if (at.has("uniqueItems") && at["uniqueItems"] != Json(false)) {
    return refuse(at, "uniqueItems cannot be kept to");
  }
  BF_ASSIGN_OR_RETURN(const std::uint32_t least, count(at, "minItems", 0));
  BF_ASSIGN_OR_RETURN(const std::uint32_t most, count(at, "maxItems", GrammarBuilder::kUnbounded));
  if (most < least) return refuse(at, fmt::format("minItems is {} and maxItems {}", least, most));
  Expr element = 0;
  if (!at.has("items")) {
    element = pieces_.value();
  } else if (at["items"] == Json(false) && least == 0) {
    return pieces_.elements(builder_.empty(), 0, 0);
  } else {
    BF_ASSIGN_OR_RETURN(element, compile_rule(at["items"], at.path + "/items", at.depth + 1));
  }
  return pieces_.elements(element, least, most);
}

Result<Expr> SchemaCompiler::compile_pattern(const At& at) {
  const char* keyword = at.has("pattern") ? "pattern" : "format";
  const Json& given = at[keyword];
  if (!given.is_string()) return refuse(at, fmt::format("{} is no text", keyword));
  for (const char* other : {"minLength", "maxLength", "format"}) {
    if (at.has(other) && std::string_view(other) != keyword) {
      return refuse(at, fmt::format("{} beside {} cannot be kept to", other, keyword));
    }
  }
  RegexOptions options{.characters = [this](const CodePointSet& set) { return pieces_.characters(set); },
                       .search = at.has("pattern")};
  std::string pattern = given.get<std::string>();
  if (!at.has("pattern")) {
    pattern = json_format_pattern(pattern);
    if (pattern.empty()) {
      return refuse(at, fmt::format("the format {} is not known; possible are {}", printable(given.get<std::string>()),
                                    json_format_names()));
    }
  }
  auto inside = add_regex(builder_, pattern, options);
  if (!inside) return refuse(at, inside.error().message);
  return pieces_.quoted(*inside);
}

Result<Expr> SchemaCompiler::compile_string(const At& at) {
  if (at.has("pattern") || at.has("format")) return compile_pattern(at);
  BF_ASSIGN_OR_RETURN(const std::uint32_t least, count(at, "minLength", 0));
  BF_ASSIGN_OR_RETURN(const std::uint32_t most, count(at, "maxLength", GrammarBuilder::kUnbounded));
  if (most < least) return refuse(at, fmt::format("minLength is {} and maxLength {}", least, most));
  return pieces_.string(least, most);
}

Result<Expr> SchemaCompiler::compile_number(const At& at, bool whole) {
  NumberBounds bounds{.whole = whole};
  for (const auto& [key, bound] :
       {std::pair{"minimum", &bounds.minimum}, std::pair{"maximum", &bounds.maximum},
        std::pair{"exclusiveMinimum", &bounds.exclusive_minimum},
        std::pair{"exclusiveMaximum", &bounds.exclusive_maximum}, std::pair{"multipleOf", &bounds.multiple_of}}) {
    if (at.has(key)) *bound = parse_json(dump_json(at[key]));
  }
  if (bounds.none()) return whole ? pieces_.integer() : pieces_.number();
  auto number = add_number(builder_, bounds);
  if (!number) return refuse(at, number.error().message);
  return *number;
}

Result<std::shared_ptr<const Grammar>> SchemaCompiler::run() {
  const Rule root = builder_.add_rule("the text");
  const Rule whole = builder_.add_rule("#");
  references_["#"] = whole;
  pending_.push_back({whole, &root_, "#"});
  const Expr before = builder_.optional(builder_.choice({builder_.bytes(" "), builder_.bytes("\n")}));
  builder_.set_rule(root, builder_.sequence({before, builder_.call(whole)}));
  while (!pending_.empty()) {
    const Pending next = std::move(pending_.back());
    pending_.pop_back();
    BF_ASSIGN_OR_RETURN(const Expr expr, compile(*next.schema, next.path, 0));
    builder_.set_rule(next.rule, expr);
  }
  return builder_.build(root);
}

}  // namespace

Result<std::shared_ptr<const Grammar>> compile_json_schema(const Json& schema) {
  if (is_too_deep(schema)) {
    return make_error(ErrorCode::kInvalidArgument, "the schema has more than {} values within each other", kValueDepth);
  }
  return SchemaCompiler(schema).run();
}

Result<std::shared_ptr<const Grammar>> compile_json_schema_text(std::string_view text) {
  if (text.size() > kSchemaBytes) {
    return make_error(ErrorCode::kInvalidArgument, "the schema has {} bytes, at most {} are possible", text.size(),
                      kSchemaBytes);
  }
  const Json schema = parse_ordered_json(text);
  if (schema.is_discarded()) return make_error(ErrorCode::kInvalidArgument, "the schema is not valid JSON");
  return compile_json_schema(schema);
}

Result<std::shared_ptr<const Grammar>> compile_json_object() {
  return compile_json_schema(Json{{"type", "object"}});
}

}  // namespace butterfly
