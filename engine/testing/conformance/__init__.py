"""The conformance kit: how well a device keeps the engine's contract, as a score, and what to fix first.

`engine conformance DEVICE` and `pytest --engine-device=DEVICE` run the same checks as a test file with
`BehaviourSuite` and `OperatorSuite`. The command runs them in a process of their own, so that a plugin that crashes,
exits or hangs fails one check; the report names the hook in which it did.
"""
