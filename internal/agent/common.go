package agent

import (
	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/ownnode"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/metrics"
)

// common is what all parts of an agent use. It does not change.
type common struct {
	cfg     config.Config
	version string
	log     *logrus.Entry
	metrics *metrics.Recorder
	events  *kube.Events
	access  *ownnode.Access
}

// countFailures counts the failed checks of a round. It returns nil if there are none.
func (c *common) countFailures(failed round.Failure) error {
	if len(failed.Checks) == 0 {
		return nil
	}
	for _, check := range failed.Checks {
		c.metrics.Failure(check)
	}
	return failed
}
