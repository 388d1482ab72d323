"""Speed, memory and accuracy beside peers: ``python -m benchmarks`` lists the scenarios.

Every public name is used by a scenario, or is here with a reason; tests/test_benchmarks.py audits
this.
"""

WITHOUT_SCENARIO = {
    "ScoresDisplay": "draws what has been computed",
    "LoadingsDisplay": "draws what has been computed",
    "BiplotDisplay": "draws what has been computed",
    "Channel": "a base class",
    "CommunicationDisplay": "draws what has been computed",
    "CommunicationLog": "scenarios read it as communication_",
    "ControlChartDisplay": "draws what has been computed",
    "JackknifeIntervals": "what jackknife_intervals returns",
    "LeftVectors": "what a VerticalMethod returns",
    "MergeStrategy": "a base class",
    "iter_batches": "a way to read rows; tests/test_sources.py bounds its memory",
    "NpyRows": "a way to read rows; tests/streaming/test_out_of_core.py bounds its memory",
    "PairMoments": "what a client with missing entries sends; scenarios use AvailablePairs",
    "ParallelAnalysis": "what parallel_analysis returns",
    "PrivacyBudgetError": "an error",
    "PrivacyLeakWarning": "a warning",
    "PrivacyLedger": "adds up what was released, and computes nothing",
    "PrivateScoresDisplay": "draws what bench privacy_audit attacks",
    "RankDisplay": "draws what has been computed",
    "RankRule": "a base class",
    "ScreeDisplay": "draws what has been computed",
    "SiteEvidence": "what RobustMerge finds",
    "StreamEvaluation": "what evaluate_stream returns",
    "SubspaceErrorDisplay": "draws what has been computed",
    "SuspectsDisplay": "draws what has been computed",
    "Topology": "a base class",
    "VerticalMethod": "a base class",
    "projected_sparse_recovery": "a step of RobustSubspaceTracker",
}
