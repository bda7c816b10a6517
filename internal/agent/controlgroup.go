package agent

import (
	"context"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Checks returns the checks that an agent in this pod would run, and their runner, for a process that uses the results itself.
func Checks(cfg config.Config, e kube.Environment) ([]checks.Check, checks.Runner) {
	node := nodepatch.Client{REST: e.Client.Core, Name: cfg.NodeName}
	get := func(ctx context.Context) (checks.Report, error) {
		e.Client.CloseIdleConnections()
		_, report, err := readLarge(ctx, cfg.NodeName, node.GetPadded)
		return report, err
	}
	return newChecks(cfg, e, clusterDomain(), checks.API{Get: get}), newRunner(cfg, nil)
}
