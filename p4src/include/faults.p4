/*
 * The drop injector: whether a packet is lost on purpose.
 *
 * Decided from the port and a random number of 32 bits. It stands for the link, so it drops any
 * packet, hopsum's or not, before all other stages of ingress and after all other stages of
 * egress, where each copy of a replicated packet is drawn separately. The controller's
 * port has no loss.
 */
#ifndef HOPSUM_FAULTS_P4_
#define HOPSUM_FAULTS_P4_

#include "metadata.p4"

// Lose a packet with probability threshold / 2^32.
@id(10)
action lose(inout bool lost, bit<32> threshold) {
    bit<32> die;
    random(die, 0, 0xFFFFFFFF);
    lost = die < threshold;
}

control IngressFaults(inout metadata_t meta, in standard_metadata_t standard_metadata) {
    @id(5)
    table ingress_loss {
        key = {
            standard_metadata.ingress_port : exact @id(1) @name("ingress_port");
        }
        actions = {
            lose(meta.lost);
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        size = PORTS;
    }

    apply {
        if (standard_metadata.ingress_port != CPU_PORT) {
            ingress_loss.apply();
        }
    }
}  // control IngressFaults

control EgressFaults(inout metadata_t meta, in standard_metadata_t standard_metadata) {
    @id(6)
    table egress_loss {
        key = {
            standard_metadata.egress_port : exact @id(1) @name("egress_port");
        }
        actions = {
            lose(meta.lost);
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        size = PORTS;
    }

    apply {
        if (standard_metadata.egress_port != CPU_PORT) {
            egress_loss.apply();
        }
    }
}  // control EgressFaults

#endif  // HOPSUM_FAULTS_P4_
