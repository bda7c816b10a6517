package harness

// What the agent logs (msg), as far as tests wait for it; each is at least the beginning of the message.
const (
	MsgCheckPassed     = "check passed"
	MsgVerified        = "node verified"
	MsgAlreadyVerified = "node is already verified"
	MsgNotVerified     = "node not verified"
	MsgNoLonger        = "node is no longer verified"
	MsgTimedOut        = "initial timeout exceeded"
	MsgMarkedFailed    = "node marked as failed"
	MsgForeignTaints   = "waiting for foreign taints"
	MsgPatchAgain      = "patch not applied, will retry with the current node"
	MsgTaintEffect     = "startup taint has an unexpected effect"
	MsgRecheckFailed   = "recheck failed"
	MsgShuttingDown    = "shutting down: serving final metrics"
)
