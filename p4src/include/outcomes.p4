/*
 * One counter for the outcomes of all packets.
 *
 * The cells are those of src/hopsum/protocol/outcomes.py. It lives outside the controls because
 * ingress and egress both count.
 */
#ifndef HOPSUM_OUTCOMES_P4_
#define HOPSUM_OUTCOMES_P4_

typedef bit<32> outcome_t;

const outcome_t OUTCOME_AGGREGATED = 0;      // added to a slot that is not complete yet
const outcome_t OUTCOME_COMPLETED = 1;       // completed its slot: the sum was sent
const outcome_t OUTCOME_DUPLICATE = 2;       // repeated child: dropped
const outcome_t OUTCOME_RE_EMITTED = 3;      // the stored sum was sent again
const outcome_t OUTCOME_STALE = 4;           // too late: flagged and forwarded
const outcome_t OUTCOME_FORWARDED = 5;       // not aggregated here, or stale before
const outcome_t OUTCOME_BYPASSED = 6;        // no switch may aggregate it
const outcome_t OUTCOME_CLEARED = 7;         // a result that cleared its slot
const outcome_t OUTCOME_RESULT = 8;          // a result that cleared nothing
const outcome_t OUTCOME_NOT_ADMITTED = 9;    // no admission entry for that job or child
const outcome_t OUTCOME_MALFORMED = 10;      // invalid packet
const outcome_t OUTCOME_OVERFLOW = 11;       // a lane wrapped around (in addition to 0 or 1)
const outcome_t OUTCOME_INJECTED_LOSS = 12;  // dropped on purpose
const outcome_t OUTCOME_INSPECTED = 13;      // a slot was shown to the controller
const outcome_t OUTCOME_TAKEN_OVER = 14;     // an unfinished owner lost its slot (in addition to 0 or 1)
const outcome_t OUTCOME_PLAIN = 15;          // not hopsum's: forwarded by the plain tables
const outcome_t OUTCOME_CONGESTED = 16;      // met a long queue (in addition to others)
const outcome_t OUTCOME_REQUESTED = 17;      // showed that an earlier one was lost (in addition)
const outcome_t OUTCOME_REPEATED = 18;       // a request: the lost frame was sent again
const outcome_t OUTCOME_UNANSWERED = 19;     // a request that cannot be answered here
const outcome_t OUTCOME_ANSWERED = 20;       // its result is here: it was sent back
const outcome_t OUTCOME_KEPT = 21;           // a result that an empty slot keeps

@id(1)
counter(22, CounterType.packets) outcomes;

#endif  // HOPSUM_OUTCOMES_P4_
