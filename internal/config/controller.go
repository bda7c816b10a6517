package config

import (
	"errors"
	"io"
	"slices"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

// Controller is everything that an operator can decide about the controller. It shares the agent's settings, except for those
// of one run.
type Controller struct {
	Config

	DeploymentMode string
	// AgentName is the name of the DaemonSet, and the beginning of the names of the controller's own objects.
	AgentName string
	// AgentTemplate is the path of a PodTemplateSpec (core/v1): the agent's, or in controller mode that of a worker.
	AgentTemplate   string
	NotStartedAfter time.Duration
	HealthPort      int
	// VerifyAfterReboot does nothing with RecheckInterval: agents that stay prove their nodes by themselves.
	VerifyAfterReboot bool

	MaxConcurrentWorkers int

	RemediationMode                         string
	DeleteNodes, UnmetRequirements          bool
	DeleteAfter, FailedFor, ControlGroupFor time.Duration

	Retaint                                                    bool
	RetaintControlGroupFor, RetaintCoolDown, RetaintNoAgentFor time.Duration
	// RemoveFailedTaints is flag only: it removes what Retaint has added, and ends.
	RemoveFailedTaints bool
}

// Values of DEPLOYMENT_MODE.
const (
	ModeDaemonSet  = "daemonset"
	ModeController = "controller"
)

// Values of REMEDIATION_MODE.
const (
	RemediationOff    = "off"
	RemediationDryRun = "dry-run"
	RemediationDelete = "delete"
)

// settings is the table of the controller's flags: its own, then those that it shares with the agent.
func (c *Controller) settings() []*setting {
	own := []*setting{
		{flag: "deployment-mode", kind: "mode", value: ModeDaemonSet,
			parse: text(&c.DeploymentMode, oneOf(ModeDaemonSet, ModeController)),
			help:  "who runs the checks: daemonset (an agent on each node) or controller (a worker pod for each node)"},
		{flag: "agent-name", kind: "name", value: "kube-node-ready", parse: text(&c.AgentName, agentName),
			help: "name of the agent's DaemonSet, and the beginning of the names of workers, Lease and ConfigMap"},
		{flag: "agent-template", kind: "path", value: "/etc/kube-node-ready/agent.yaml", parse: text(&c.AgentTemplate, anything),
			help: "file with the pod template of the agent or worker"},
		{flag: "node-name", kind: "name", parse: text(&c.NodeName, optional(subdomain)), help: "node that this pod runs on"},
		{flag: "not-started-after", kind: "duration", value: "3m", parse: duration(&c.NotStartedAfter, time.Second, aDay),
			help: "how long a node may be without a running agent before that is reported"},
		{flag: "health-port", kind: "port", value: "8081", parse: number(&c.HealthPort, 1, 65535),
			help: "port of /healthz and /readyz"},
		{flag: "verify-after-reboot", kind: "bool", value: "false", parse: boolean(&c.VerifyAfterReboot),
			help: "remove the label of verified nodes that rebooted, so that they are verified again; does nothing with " +
				"--recheck-interval"},
		{flag: "max-concurrent-workers", kind: "number", value: "50", parse: number(&c.MaxConcurrentWorkers, 2, 1000),
			help: "how many first attempts may start at once, and how many retries (controller mode)"},
		{flag: "remediation-mode", kind: "mode", value: RemediationOff,
			parse: text(&c.RemediationMode, oneOf(RemediationOff, RemediationDryRun, RemediationDelete)),
			help:  "replace nodes that are never verified: off, dry-run (only report) or delete (their NodeClaim)"},
		{flag: "delete-nodes", kind: "bool", value: "false", parse: boolean(&c.DeleteNodes),
			help: "also delete a Node that has no NodeClaim and that Karpenter does not manage; needs --remediation-mode"},
		{flag: "unmet-requirements", kind: "bool", value: "false", parse: boolean(&c.UnmetRequirements),
			help: "also replace a node that fails check node alone; needs --remediation-mode"},
		{flag: "delete-after", kind: "duration", value: "30m", parse: duration(&c.DeleteAfter, time.Second, aDay),
			help: "how old a node must be before it may be replaced"},
		{flag: "failed-for", kind: "duration", value: "10m", parse: duration(&c.FailedFor, time.Second, aDay),
			help: "how long a node must fail for one reason before it may be replaced"},
		{flag: "control-group-for", kind: "duration", value: "5m", parse: duration(&c.ControlGroupFor, time.Second, aDay),
			help: "how long the checks must pass in the controller's own pod before a node may be replaced"},
		{flag: "retaint", kind: "bool", value: "false", parse: boolean(&c.Retaint),
			help: "add the failed taint to verified nodes that fail their rechecks; needs --recheck-interval"},
		{flag: "retaint-control-group-for", kind: "duration", value: "10m",
			parse: duration(&c.RetaintControlGroupFor, time.Second, aDay),
			help:  "how long the checks must pass in the controller's own pod before a re-taint"},
		{flag: "retaint-cool-down", kind: "duration", value: "10m", parse: duration(&c.RetaintCoolDown, time.Second, aDay),
			help: "how long after a re-taint the node is not re-tainted again"},
		{flag: "retaint-no-agent-for", kind: "duration", value: "10m", parse: duration(&c.RetaintNoAgentFor, time.Second, aDay),
			help: "how long a node may have no agent before its failed taint is removed and a False condition becomes Unknown"},
		{flag: "remove-failed-taints", kind: "bool", value: "false", parse: boolean(&c.RemoveFailedTaints),
			help: "remove the failed taints that --retaint has added, from all nodes, and exit"},
	}
	// What only one run of the agent knows.
	agentOnly := []string{"node-name", "late-taint-window", "on-timeout", "condition", "enable-connectivity-matrix",
		"peers-service", "enable-metrics", "metrics-linger", "dry-run", "once", "worker", "dns-endpoints", "cluster-domain"}
	isAgents := func(s *setting) bool { return slices.Contains(agentOnly, s.flag) }
	return append(own, slices.DeleteFunc(c.Config.settings(), isAgents)...)
}

// agentName allows what tells the failed taint of the controller, whose value it is, from that of an agent: its value says what
// failed.
func agentName(s string) error {
	if verdict.IsFailureValue(s) || s == checks.PeersName {
		return errors.New("must not be a value that an agent gives the failed taint: set the chart's fullnameOverride to another name")
	}
	return label(s)
}

// ParseController reads the controller's flags over environment over defaults. Its errors are those of Parse.
func ParseController(args []string, lookupEnv func(string) (string, bool), out io.Writer) (Controller, error) {
	var c Controller
	problems, err := read("kube-node-ready-controller", controllerUsage, c.settings(), &c.Version, args, lookupEnv, out)
	if err != nil || c.Version {
		return c, err
	}
	replacesMore := c.DeleteNodes || c.UnmetRequirements
	switch {
	case len(problems) > 0:
		return c, problems
	case c.MetricsPort == c.HealthPort:
		return c, UsageError{"--metrics-port and --health-port must differ"}
	case replacesMore && c.RemediationMode == RemediationOff:
		return c, UsageError{"--delete-nodes and --unmet-requirements need --remediation-mode dry-run or delete"}
	case c.Retaint && c.RecheckInterval == 0:
		return c, UsageError{"--retaint needs --recheck-interval: only rechecks find that a verified node fails"}
	case c.Retaint && c.DeploymentMode == ModeController:
		return c, UsageError{"--retaint needs --deployment-mode daemonset: a worker does not stay on its node"}
	}
	return c, nil
}

const controllerUsage = `kube-node-ready-controller reports the nodes that no agent can report about.
With --remediation-mode it also replaces nodes that are never verified.

Usage: kube-node-ready-controller [flags]

%s
A flag overrides the environment variable named in brackets, which overrides the default.
Exit codes: 0 shut down, 1 a fatal error, 2 usage.
`
