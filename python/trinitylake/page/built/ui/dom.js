import{a,b,c,d,e,f,g,h,i}from"./chunk-WZIZIJ7E.js";export{c as append,a as h,h as icon,g as lines,i as mark,f as plain,d as replace,e as shown,b as svg};
