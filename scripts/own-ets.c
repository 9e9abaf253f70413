// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * A NIC without hardware that has ETS (IEEE 802.1Qaz), for scripts/own-ets.sh. Its DCB is as the drivers of Intel's
 * NICs have it: one traffic class for all, until settings give it two, with queues of their own and led to by the
 * priority of a packet. It sends nothing, but counts the packets that each traffic class was given.
 */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/module.h>
#include <net/dcbnl.h>

#define QUEUES 4

static char *driver = "ixgbe";
module_param(driver, charp, 0644);
MODULE_PARM_DESC(driver, "the driver's name that it tells");
static unsigned int mode = DCB_CAP_DCBX_HOST | DCB_CAP_DCBX_VER_IEEE;
module_param(mode, uint, 0644);
MODULE_PARM_DESC(mode, "who has DCB in hand (DCB_CAP_DCBX_*)");
static unsigned int fault;
module_param(fault, uint, 0644);
MODULE_PARM_DESC(fault, "1: refuses settings, 2: ignores them, 3: makes others of them");
static unsigned int sent[IEEE_8021QAZ_MAX_TCS];
module_param_array(sent, uint, NULL, 0644);
MODULE_PARM_DESC(sent, "the packets that each traffic class was given");

static struct net_device *nic;
static struct ieee_ets kept = { .willing = 1, .ets_cap = 8, .tc_tx_bw = { 100 }, .tc_tsa = { IEEE_8021QAZ_TSA_ETS } };
static struct ieee_pfc pauses = { .pfc_cap = 8 };

static int getets(struct net_device *dev, struct ieee_ets *ets)
{
	*ets = kept;
	return 0;
}

static int setets(struct net_device *dev, struct ieee_ets *ets)
{
	int classes = 1, of;

	if (fault == 1 || !(mode & DCB_CAP_DCBX_VER_IEEE) || mode & DCB_CAP_DCBX_LLD_MANAGED)
		return -EINVAL;
	if (fault == 2)
		return 0;
	for (of = 0; of < IEEE_8021QAZ_MAX_TCS; of++)
		classes = max(classes, ets->prio_tc[of] + 1);
	if (classes > QUEUES / 2)
		return -EINVAL;
	kept = *ets;
	kept.ets_cap = 8;
	if (fault == 3)
		kept.tc_tx_bw[0] ^= 1;
	netdev_reset_tc(dev);
	if (classes == 1)
		return 0;
	netdev_set_num_tc(dev, classes);
	for (of = 0; of < classes; of++)
		netdev_set_tc_queue(dev, of, QUEUES / 2, of * (QUEUES / 2));
	for (of = 0; of < IEEE_8021QAZ_MAX_TCS; of++)
		netdev_set_prio_tc_map(dev, of, ets->prio_tc[of]);
	return 0;
}

static int getpfc(struct net_device *dev, struct ieee_pfc *pfc)
{
	*pfc = pauses;
	return 0;
}

static int setpfc(struct net_device *dev, struct ieee_pfc *pfc)
{
	pauses = *pfc;
	pauses.pfc_cap = 8;
	return 0;
}

static u8 getdcbx(struct net_device *dev)
{
	return mode;
}

static const struct dcbnl_rtnl_ops dcb = {
	.ieee_getets = getets,
	.ieee_setets = setets,
	.ieee_getpfc = getpfc,
	.ieee_setpfc = setpfc,
	.getdcbx = getdcbx,
};

static netdev_tx_t xmit(struct sk_buff *packet, struct net_device *dev)
{
	sent[netdev_txq_to_tc(dev, skb_get_queue_mapping(packet)) & 7]++;
	dev_kfree_skb(packet);
	return NETDEV_TX_OK;
}

static const struct net_device_ops ops = { .ndo_start_xmit = xmit, .ndo_set_mac_address = eth_mac_addr };

static void getinfo(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, driver, sizeof(info->driver));
}

static const struct ethtool_ops words = { .get_drvinfo = getinfo };

static int __init begin(void)
{
	int error;

	nic = alloc_etherdev_mqs(0, QUEUES, 1);
	if (!nic)
		return -ENOMEM;
	strscpy(nic->name, "ets0", IFNAMSIZ);
	nic->netdev_ops = &ops;
	nic->ethtool_ops = &words;
	nic->dcbnl_ops = &dcb;
	eth_hw_addr_random(nic);
	error = register_netdev(nic);
	if (error)
		free_netdev(nic);
	return error;
}

static void __exit end(void)
{
	unregister_netdev(nic);
	free_netdev(nic);
}

module_init(begin);
module_exit(end);
MODULE_DESCRIPTION("A NIC without hardware that has ETS");
MODULE_LICENSE("Dual MIT/GPL");
