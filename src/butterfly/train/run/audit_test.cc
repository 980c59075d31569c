#include "butterfly/train/run/audit.h"

#include <gtest/gtest.h>

#include <functional>

#include "butterfly/train/run/tiny_run_test.h"

namespace butterfly {
namespace {

constexpr int kSteps = 300;

/// A run that says that it trained: every number of it may be made to lie.
struct ToldRun {
  ToldRun() : parameters(std::move(*ParameterSet::create(tiny_shape()))) {
    report.tokens = 1000;
    report.loss = 1.2;
    report.phases = {.data_s = 0.01,
                     .forward_s = 0.1,
                     .backward_s = 0.2,
                     .communication_exposed_s = 0.05,
                     .optimizer_s = 0.04,
                     .total_s = 0.4};
    report.reduced.bytes_sent = report.reduced.formula_bytes = 1'000'000;
    facts.data.unigram_entropy = 2.5;
    facts.step = facts.steps = kSteps;
    facts.forward_flops_per_step = 2e9;
    facts.mfu = 0.6;
    facts.bucket_bytes = 4 << 20;
    facts.rank_hashes = {"aaaa", "aaaa", "aaaa"};
  }

  /// Each step gives every parameter a gradient and moves it, unless told otherwise.
  AuditVerdict audited() {
    Audit audit(parameters);
    for (int step = 0; step < kSteps; ++step) {
      for (const Parameter& parameter : parameters.list()) {
        if (parameter.name != without_gradient) parameters.gradient(parameter).back() = gradient;
        if (parameter.name != unmoved && !parameter.frozen) parameters.weight(parameter).front() += 0.01f;
      }
      audit.step(report, parameters);
    }
    return audit.finish(parameters, facts);
  }

  ParameterSet parameters;
  StepReport report{};
  AuditFacts facts{};
  std::string without_gradient, unmoved;
  float gradient = 0.5f;
};

/// The verdict's only reason contains `words`.
void expect_invalid(const AuditVerdict& verdict, const std::string& words) {
  EXPECT_FALSE(verdict.valid);
  ASSERT_EQ(verdict.reasons.size(), 1u) << to_string(verdict);
  EXPECT_NE(verdict.reasons[0].find(words), std::string::npos) << to_string(verdict);
  EXPECT_EQ(to_string(verdict), "INVALID: " + verdict.reasons[0]);
}

void expect_not_judged(const AuditVerdict& verdict, const std::string& words) {
  EXPECT_TRUE(verdict.valid) << to_string(verdict);
  const auto said = std::any_of(verdict.checks.begin(), verdict.checks.end(), [&](const std::string& check) {
    return check.find(words) != std::string::npos && check.find("not judged") != std::string::npos;
  });
  EXPECT_TRUE(said) << words;
}

TEST(Audit, ARunThatDidItsWorkIsValid) {
  ToldRun run;
  const AuditVerdict verdict = run.audited();
  EXPECT_EQ(to_string(verdict), "valid");
  for (const std::string& check : verdict.checks) EXPECT_EQ(check.find("not judged"), std::string::npos) << check;
}

TEST(Audit, AParameterWithoutAGradientIsFound) {
  ToldRun run;
  run.without_gradient = "blk.0.ffn_up.weight";
  expect_invalid(run.audited(), "blk.0.ffn_up.weight never received a gradient");
}

TEST(Audit, AGradientThatIsNeverFiniteIsNone) {
  ToldRun run;
  run.gradient = std::numeric_limits<float>::infinity();
  expect_invalid(run.audited(), "and 9 more never received a gradient");
}

TEST(Audit, AParameterThatDoesNotMoveIsFound) {
  ToldRun run;
  run.unmoved = "blk.0.attn_q.weight";
  expect_invalid(run.audited(), "blk.0.attn_q.weight did not move");
}

TEST(Audit, FrozenParametersNeedNeitherAndMayNotMove) {
  ToldRun run;
  ASSERT_TRUE(run.parameters.freeze({"blk.0.attn_q.weight"}));
  run.without_gradient = run.unmoved = "blk.0.attn_q.weight";
  EXPECT_TRUE(run.audited().valid);
  Audit audit(run.parameters);
  run.unmoved.clear();
  for (const Parameter& parameter : run.parameters.list()) {
    run.parameters.gradient(parameter).back() = 1.0f;
    run.parameters.weight(parameter).front() += 1.0f;
  }
  audit.step(run.report, run.parameters);
  run.facts.step = run.facts.steps = 1;
  expect_invalid(audit.finish(run.parameters, run.facts), "moved, though declared frozen");
}

TEST(Audit, AnExpertWithoutTokensHasNoGradientToHaveAndOneWithTokensHas) {
  ToldRun run;
  run.parameters = std::move(*ParameterSet::create(tiny_expert_shape()));
  run.report.experts = 4;
  run.report.expert_tokens.assign(8, 500);
  run.without_gradient = "blk.1.ffn_up_exps.2.weight";
  expect_invalid(run.audited(), "blk.1.ffn_up_exps.2.weight never received a gradient");
  run.report.expert_tokens[4 + 2] = 0;
  run.unmoved = run.without_gradient;
  expect_not_judged(run.audited(), "the router sent none to those of blk.1.ffn_up_exps.2.weight");
  // That no token went through an expert says nothing of other parameters, nor of that expert in another layer.
  run.without_gradient = run.unmoved = "blk.0.ffn_up_exps.2.weight";
  EXPECT_FALSE(run.audited().valid);
  run.without_gradient = run.unmoved = "blk.1.ffn_gate_inp.weight";
  EXPECT_FALSE(run.audited().valid);
}

TEST(Audit, ARunWithoutAnUpdateIsInvalid) {
  ToldRun run;
  run.report.left_out = true;
  expect_invalid(run.audited(), "nothing was trained");
}

TEST(Audit, ALossAtTheEntropyFloorIsFound) {
  ToldRun run;
  run.report.loss = 2.5;
  expect_invalid(run.audited(), "a model that looks at no context reaches 2.5000");
}

TEST(Audit, TheLossIsNotJudgedWhereThereWasNothingToLearnOrNoTime) {
  ToldRun run;
  run.report.loss = 2.5;
  run.facts.data.known_entropy = 2.5;
  expect_not_judged(run.audited(), "nothing in the data");
  run.facts.data.known_entropy = -1.0;
  run.facts.steps = kSteps + 1;
  expect_not_judged(run.audited(), "300 of 301 steps");
  run.facts.step = run.facts.steps = 100;
  expect_not_judged(run.audited(), "at least 200");
  run.facts.step = run.facts.steps = kSteps;
  run.report.tokens = 0;
  expect_not_judged(run.audited(), "tokens were trained on");
}

TEST(Audit, ABackwardPassThatTakesNoTimeOrTooMuchIsFound) {
  for (const double backward_s : {0.001, 0.09, 0.41}) {
    ToldRun run;
    run.report.phases.total_s += backward_s - run.report.phases.backward_s;
    run.report.phases.backward_s = backward_s;
    expect_invalid(run.audited(), "times as long as the forward pass");
  }
  ToldRun small;
  small.report.phases.backward_s = 0.0;
  small.report.phases.total_s = 0.2;
  small.facts.forward_flops_per_step = 1e6;
  expect_not_judged(small.audited(), "time of the backward pass");
}

TEST(Audit, UtilisationBeyondThePeakIsFound) {
  ToldRun run;
  run.facts.mfu = 1.02;
  expect_invalid(run.audited(), "102.0 % of the measured peak");
  run.facts.mfu = 0.0;
  expect_not_judged(run.audited(), "peak is not known");
}

TEST(Audit, BytesThatDifferFromTheFormulaAreFound) {
  for (const std::uint64_t sent : {980'000, 1'020'000}) {
    ToldRun run;
    run.report.reduced.bytes_sent = sent;
    expect_invalid(run.audited(), "the formula says 300000000");
    run.facts.bucket_bytes = 64 << 10;
    expect_not_judged(run.audited(), "bytes on the wire");
  }
  ToldRun close;
  close.report.reduced.bytes_sent = 1'009'000;
  EXPECT_TRUE(close.audited().valid);
}

TEST(Audit, PhasesThatDoNotAddUpAreFound) {
  ToldRun run;
  run.report.phases.total_s = 0.45;
  expect_invalid(run.audited(), "the phases add up to 120 s, the steps took 135 s");
}

// Fails when a run of few short steps is invalid because another program had the processor for a moment.
TEST(Audit, AMomentThatIsInNoPhaseIsNotFound) {
  ToldRun run;
  run.report.phases = {.data_s = 1e-6,
                       .forward_s = 1e-5,
                       .backward_s = 2e-5,
                       .communication_exposed_s = 5e-6,
                       .optimizer_s = 4e-6,
                       .total_s = 6e-5};
  EXPECT_EQ(to_string(run.audited()).find("the phases add up"), std::string::npos);
}

TEST(Audit, RanksThatEndWithOtherWeightsAreFound) {
  ToldRun run;
  run.facts.rank_hashes[2] = "bbbb";
  expect_invalid(run.audited(), "rank 2 ended with weights bbbb, rank 0 with aaaa");
}

TEST(Audit, CopiesThatEndAsOtherThanTheirOwnersPartAreFound) {
  ToldRun run;
  run.facts.part_hashes = {{"aa", "", "cc"}, {"aa", "bb", ""}, {"", "bb", "cc"}};
  EXPECT_TRUE(run.audited().valid) << to_string(run.audited());
  run.facts.part_hashes[2][1] = "bx";
  expect_invalid(run.audited(), "rank 2 ended with bx as its copy of rank 1's part, rank 1 with bb");
}

}  // namespace
}  // namespace butterfly
