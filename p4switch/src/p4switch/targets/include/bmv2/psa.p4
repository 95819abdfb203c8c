// Where p4c keeps the declarations with BMv2's widths, which are those of this switch.
#include <psa.p4>
