package harness

// What the agent logs (msg), as far as tests wait for it; each is at least the beginning of the message.
const (
	MsgCheckPassed     = "check passed"
	MsgVerified        = "node verified"
	MsgAlreadyVerified = "node is verified already"
	MsgNotVerified     = "node not verified"
	MsgNoLonger        = "node is not verified any more"
	MsgTimedOut        = "initial timeout passed"
	MsgMarkedFailed    = "node marked as failed"
	MsgForeignTaints   = "waiting until others have taken their taint off"
	MsgPatchAgain      = "patch not applied: building it again"
	MsgTaintEffect     = "taint has another effect than TAINT_EFFECT"
	MsgShuttingDown    = "told to stop: serving the final metrics first"
)
